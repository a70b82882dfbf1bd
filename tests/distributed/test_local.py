"""Ranks started by torchrun on this machine: their errors, and the ends of those who started them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PATIENCE, processes, until
from training_ranks import train_endlessly
from training_runs import PROCESSES, digits, final

from ddpipe.errors import Diverged, Interrupted, ParameterError, ReplicaFailed
from ddpipe.processes import local
from ddpipe.processes.local import run_local, run_program

pytestmark = pytest.mark.slow


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of ranks that fail in a chosen way."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return "faulty_rank"


def test_the_error_of_one_rank_arrives_whole_although_the_other_hangs(
    faulty: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Diverged) as raised:
        run_local(faulty, ["diverge"], processes=2)
    assert (raised.value.what, raised.value.which) == ("training diverged", "rank 1")
    assert (raised.value.seen, raised.value.do) == ("the loss is nan", "Lower the rate.")
    shown = capfd.readouterr().err
    assert "rank 0 waits" in shown
    assert "Traceback" not in shown
    assert "ChildFailedError" not in shown


def test_a_killed_rank_is_named_with_its_signal(faulty: str) -> None:
    with pytest.raises(ReplicaFailed) as raised:
        run_local(faulty, ["die"], processes=2)
    assert raised.value.which == "rank 1 on this machine"
    assert "SIGKILL" in raised.value.seen


def test_a_rank_that_lost_a_killed_one_leaves_the_word_to_torchrun(faulty: str, tmp_path: Path) -> None:
    """In a pod with several ranks, what torchrun says is all that is known of the cause."""
    path = tmp_path / "error.json"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = subprocess.run(
        [*torchrun, "-m", faulty, "die"],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not path.exists()
    assert re.search(r"rank +: 1 .*\n.*exitcode +: -9", ended.stderr.partition("Root Cause")[2])


def test_a_rank_that_calls_sys_exit_is_named_with_the_line(faulty: str) -> None:
    with pytest.raises(ReplicaFailed, match=r"SystemExit: done(?s:.*)faulty_rank.py"):
        run_local(faulty, ["leave"], processes=1)


def test_failed_rank_keeps_its_exit_code(faulty: str) -> None:
    ended = subprocess.run([sys.executable, "-m", faulty, "crash"], capture_output=True, check=False)
    assert ended.returncode == Diverged.exit_code
    assert b"the loss is nan" in ended.stderr


class Training:
    """A training without end, in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.output = str(folder / "training")
        self.process = PROCESSES.Process(target=train_endlessly, args=(digits(folder / "store"), self.output))
        self.process.start()
        metrics = folder / "training" / "metrics.jsonl"
        until(lambda: metrics.exists() or not self.process.is_alive())
        assert metrics.exists()

    def ranks(self) -> list[int]:
        """Process ids of the living ranks."""
        return [
            process.pid
            for process in processes()
            if self.output in process.command and "ddpipe.torchrun" not in process.command
        ]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path)
    yield training
    training.process.kill()
    until(lambda: not training.ranks())


def test_sigterm_makes_the_ranks_save_and_stop(training: Training) -> None:
    assert len(training.ranks()) == 2
    training.process.terminate()
    training.process.join(PATIENCE)
    assert training.process.exitcode == Interrupted.exit_code
    assert not training.ranks()
    assert final(training.output).step > 0


def test_ranks_do_not_outlive_who_started_them(training: Training) -> None:
    assert len(training.ranks()) == 2
    os.kill(training.process.pid or 0, signal.SIGKILL)
    training.process.join(PATIENCE)
    until(lambda: not training.ranks())


SCRIPT = """
import sys
import torch
import torch.distributed as dist

def its_own(numbers):
    return numbers["missing"]

dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} sums {int(total)}")
if sys.argv[1:] == ["fail"] and dist.get_rank() == 1:
    its_own({})
dist.destroy_process_group()
"""


@pytest.mark.parametrize("start", [[sys.executable], ["torchrun"]])
def test_a_command_of_the_user_runs_as_ranks_of_this_machine(
    start: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run_program([*start, str(tmp_path / "train.py")], 2)
    shown = capfd.readouterr().err
    assert "rank 0 sums 3" in shown
    assert "rank 1 sums 3" in shown


def test_what_fails_in_a_command_of_the_user_is_shown_without_lines_of_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with pytest.raises(ReplicaFailed) as raised:
        run_program([sys.executable, str(tmp_path / "train.py"), "fail"], 2)
    assert raised.value.which == "rank 1 on this machine"
    # Gloo's threads may abort a process that ends by an exception without leaving its group.
    ends = {f"{end}; its last lines are above" for end in ("exit code 1", "SIGABRT ended it")}
    assert raised.value.seen in ends
    shown = capfd.readouterr().err
    assert "in its_own" in shown
    assert "KeyError: 'missing'" in shown
    assert "ChildFailedError" not in shown
    assert str(Path(local.__file__).parents[1]) not in shown


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ParameterError, match="there is no program 'no-such-program'"):
        run_program(["no-such-program", "train.py"], 2)
