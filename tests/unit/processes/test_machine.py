"""Main programs: how they start, what they keep, and how they end.

CPUs: what the container grants, not what the machine has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torchrun_samples import report

from ddpipe.processes.machine import cpus, first_killed

LARGE = 2**26


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


FAULTS = f"""
import resource
import numpy as np
from ddpipe.processes.machine import keep_memory
{{call}}
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones({LARGE}, np.uint8)
before = pages()
for _ in range(10):
    np.ones({LARGE}, np.uint8)
print(pages() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    asked = {call: int(ran(FAULTS.format(call=call)).stdout) for call in ("", "keep_memory()")}
    assert asked["keep_memory()"] < asked[""] / 10


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_memory_that_is_free_is_returned_at_once() -> None:
    program = """
from pathlib import Path
import numpy as np
from ddpipe.processes.machine import keep_memory, return_memory
keep_memory()
return_memory()
def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])
before = pages()
kept = []
for megabytes in range(2, 30):
    free = np.ones(megabytes << 20, np.uint8)
    kept.append(np.ones(1000))
    del free
print(pages() - before)
"""
    assert int(ran(program).stdout) < 2**20 / 4096 * 4


def test_leaving_program_flushes_output_and_runs_exit_handlers() -> None:
    program = """
import atexit, sys
from ddpipe.processes.machine import clean_up_and_leave
atexit.register(print, "removed")
sys.stdout.write("said, ")
clean_up_and_leave(3)
print("never")
"""
    ended = ran(program)
    assert (ended.returncode, ended.stdout) == (3, "said, removed\n")


def test_program_that_leaves_does_not_mind_that_nobody_listens() -> None:
    program = "import sys; from ddpipe.processes.machine import leave; sys.stdout.write('x' * 10); leave(0)"
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.read(); {program}"],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        running.stdin.close()
        assert running.wait() == 0
        assert running.stderr.read() == b""


HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", HERE), ("50000 100000", 1), ("150000 100000", min(2, HERE)), ("9900000 100000", HERE)],
)
def test_quota_of_cgroup_2_counts(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cpus(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", HERE), ("100000", 1)])
def test_quota_of_cgroup_1_counts(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus(tmp_path) == expected


def test_without_a_quota_all_cpus_are_there(tmp_path: Path) -> None:
    assert cpus(tmp_path) == HERE


def test_of_killed_ranks_the_first_is_reported() -> None:
    assert first_killed(report({0: -9, 1: -9, 2: -15}, first=1)) == (1, "SIGKILL")


@pytest.mark.parametrize("first", [0, 1])
def test_rank_that_reported_an_error_was_not_killed(tmp_path: Path, first: int) -> None:
    path = tmp_path / "error.json"
    path.write_text(
        json.dumps({"message": {"message": "lost contact", "extraInfo": {"timestamp": int(time.time())}}})
    )
    assert first_killed(report({0: -6, 1: -9}, first=first, files={0: str(path)})) == (1, "SIGKILL")


def test_what_torchrun_itself_ended_or_ended_itself_was_not_killed() -> None:
    assert first_killed(report({0: 1, 1: -15}, first=0)) is None
    assert first_killed("no report at all") is None


def test_a_stuck_rank_that_torchrun_killed_is_not_the_cause() -> None:
    """The other one reported it, and ended; torchrun waited for the stuck one, and killed it."""
    assert first_killed(report({0: 1, 1: -9}, first=0, earlier=30)) is None
    assert first_killed(report({0: 1, 1: -9}, first=0, earlier=3)) == (1, "SIGKILL")


def test_signal_without_a_name_has_its_number() -> None:
    assert first_killed(report({3: -63}, first=3)) == (3, "signal 63")
