"""Scripts that hang and know nothing of ddpipe: `python -m ddpipe.torchrun` names who keeps others waiting.

With HANG_PATIENCE=60, `pytest -s` prints the seconds in docs/faults.md: here ranks wait for 5 s, and
their watch is in a hurry.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PATIENCE = float(os.environ.get("HANG_PATIENCE", "5"))

HOST = socket.gethostname()
SUPPORT = Path(__file__).parents[1] / "support"
PLAIN = SUPPORT / "plain_script.py"
SCRIPT = PLAIN if PATIENCE > 5 else SUPPORT / "hasty_watch.py"
ASLEEP = r"plain_script.py:\d+ asleep < plain_script.py:\d+ main"
IN_REDUCTION = r"rank 0 of 2: .* in .*all_reduce < plain_script.py:\d+ main.*number 21, gloo:all_reduce; "


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (
            "sleep",
            IN_REDUCTION
            + rf"rank 1 answered but did not enter it: rank 1 on host {HOST} at {ASLEEP}.*number 20, gloo",
        ),
        ("stop", IN_REDUCTION + rf"rank 1 does not answer any more: .* \(host {HOST}\)"),
        (
            "skip",  # both wait, and either may be the first to say so
            r"(?=.*gloo:all_reduce)(?=.*gloo:broadcast).*number 21.* wait in different collectives: ",
        ),
    ],
)
def test_a_hang_of_any_script_is_named(how: str, named: str) -> None:
    said, found = "", None
    with started("ddpipe.torchrun", SCRIPT, how, PATIENCE) as process:
        assert process.stdout
        for line in process.stdout:
            said += line
            if found is None and re.search(named, line):
                found = time.time()
                end_the_rank(said)
    began = re.search(r"began=([\d.]+)", said)
    assert began, said
    assert found, said
    sys.stdout.write(f"{how}: named after {found - float(began[1]):.0f} s\n{said}")


def end_the_rank(said: str) -> None:
    """End the one that hangs: torchrun would wait for 30 s for one that has stopped."""
    pid = re.search(r"pid=(\d+)", said)
    assert pid, said
    os.kill(int(pid[1]), signal.SIGKILL)


def test_a_script_that_hangs_starts_again_if_it_may() -> None:
    with started("ddpipe.torchrun", SCRIPT, "sleep", 3, "--max-restarts=1") as process:
        said, _ = process.communicate()
    assert re.search(r"In \d+ s all ranks start again\.", said), said
    assert said.count("rank 1 with") == 1
    assert process.returncode == 0, said


@pytest.mark.parametrize("how", ["work", "wait_for_a_child_that_works", "save_slowly"])
def test_a_script_where_one_rank_works_for_long_is_not_ended(how: str) -> None:
    """It works on for as long as a rank that has not worked is left."""
    said = ""
    with started("ddpipe.torchrun", SCRIPT, how, 3, "--max-restarts=1") as process:
        assert process.stdout
        for line in process.stdout:
            said += line
            if re.search(IN_REDUCTION + "rank 1 answered but did not enter it", line):
                time.sleep(6)
                Path("enough").touch()
    assert Path("enough").exists(), said
    assert "start again" not in said
    assert process.returncode == 0, said


def test_a_script_that_does_not_hang_is_as_without_a_watch() -> None:
    """Its output, arguments, name, file and traceback."""
    seen = []
    for module in ("ddpipe.torchrun", "torch.distributed.run"):
        with started(module, PLAIN, "slow, then raise", 3) as process:
            said, _ = process.communicate()
        assert "keeps others waiting" not in said
        lines = [line for line in said.splitlines() if line.startswith(("rank ", "[rank1]:"))]
        seen.append((process.returncode, sorted(lines)))
    assert seen[0] == seen[1]
    assert seen[0][1], said


def started(module: str, script: Path, how: str, patience: float, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, "--standalone", "--nproc-per-node=2", *options, str(script), how],
        env={
            **os.environ,
            "DDPIPE_WATCH": str(patience if module == "ddpipe.torchrun" else 0),
            "OMP_NUM_THREADS": "1",
            # In the agent's own store, torch 2.15 finds the addresses of the ranks before a restart.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
