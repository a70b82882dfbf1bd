"""Which of several failures on one machine is the one that a person should read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torchrun_samples import report

from ddpipe.distributed import World
from ddpipe.distributed.ranks import own_lines
from ddpipe.errors import DdpipeError, Diverged, Interrupted, ReplicaFailed, TrainingError
from ddpipe.processes import local
from ddpipe.processes.local import _environment, _first_error, run_local


def an_error(kind: type[DdpipeError], do: str = "Do this.") -> DdpipeError:
    return kind(what="something failed", which="this", seen="that", do=do)


def wrote(folder: Path, rank: int, error: DdpipeError, *, time: int) -> None:
    """A rank left its error file, as run_rank writes it, at a time in seconds."""
    leave(folder, rank, {"message": str(error), "extraInfo": error.as_dict()}, time=time)


def leave(folder: Path, rank: int, message: dict[str, object], *, time: int) -> None:
    path = folder / "none_x" / "attempt_0" / str(rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"message": message}))
    os.utime(path, (time, time))


KILLED = report({1: -9}, first=1)


def test_first_error_wins(tmp_path: Path) -> None:
    wrote(tmp_path, 0, an_error(Diverged, do="Second."), time=20)
    wrote(tmp_path, 1, an_error(Diverged, do="First."), time=10)
    error = _first_error(tmp_path, "", 1, is_shown=False, is_stopped=False)
    assert isinstance(error, Diverged)
    assert error.do == "First."


def test_cause_wins_over_its_consequences(tmp_path: Path) -> None:
    wrote(tmp_path, 0, an_error(TrainingError), time=10)
    wrote(tmp_path, 1, an_error(Interrupted), time=20)
    wrote(tmp_path, 2, an_error(Diverged), time=30)
    assert isinstance(_first_error(tmp_path, "", 1, is_shown=False, is_stopped=True), Diverged)


def test_rank_that_was_killed_wins_over_those_that_lost_it(tmp_path: Path) -> None:
    wrote(tmp_path, 0, an_error(TrainingError), time=10)
    error = _first_error(tmp_path, f"its last words\n{KILLED}", 1, is_shown=False, is_stopped=False)
    assert isinstance(error, ReplicaFailed)
    assert error.which == "rank 1 on this machine"
    assert "SIGKILL" in error.seen
    assert "its last words" in error.seen


def test_bug_is_reported_with_its_traceback(tmp_path: Path) -> None:
    message = {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": "Traceback: line 7"}}
    leave(tmp_path, 1, message, time=10)
    error = _first_error(tmp_path, "", 1, is_shown=False, is_stopped=False)
    assert isinstance(error, ReplicaFailed)
    assert error.which == "rank 1 on this machine"
    assert error.seen == "KeyError: 'x'\nTraceback: line 7"


def test_stopped_rank_is_no_failure(tmp_path: Path) -> None:
    assert isinstance(_first_error(tmp_path, KILLED, -15, is_shown=False, is_stopped=True), Interrupted)


@pytest.mark.parametrize(
    ("code", "seen"), [(0, "the stop came when they were done"), (-15, "no process reported what it saved")]
)
def test_a_stop_after_the_end_does_not_claim_that_nothing_was_saved(
    tmp_path: Path, code: int, seen: str
) -> None:
    error = _first_error(tmp_path, "", code, is_shown=False, is_stopped=True)
    assert isinstance(error, Interrupted)
    assert error.seen == seen


def test_silent_end_shows_the_last_lines(tmp_path: Path) -> None:
    error = _first_error(
        tmp_path, "\n".join(f"line {number}" for number in range(100)), 2, is_shown=False, is_stopped=False
    )
    assert isinstance(error, ReplicaFailed)
    assert "exit code 2" in error.seen
    assert "line 99" in error.seen
    assert "line 9\n" not in error.seen


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the module `lone`, which is the only rank."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "lone.py"


@pytest.mark.parametrize(
    ("ends", "what", "seen"),
    [
        ("os.kill(os.getpid(), 9)", "a process was killed", "SIGKILL ended it; last lines:\nits last words"),
        ("os._exit(3)", "a process failed", "exit code 3; last lines:\nits last words"),
    ],
)
def test_a_rank_that_is_alone_starts_without_torchrun_and_is_named(
    ends: str, what: str, seen: str, lone: Path
) -> None:
    lone.write_text(f"import os, sys\nprint('its last words', file=sys.stderr, flush=True)\n{ends}")
    with pytest.raises(ReplicaFailed) as raised:
        run_local("lone", [], 1)
    error = raised.value
    assert (error.what, error.which, error.seen) == (what, "rank 0 on this machine", seen)


def test_a_lone_rank_that_does_not_stop_is_killed(lone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PATIENCE", 0.1)
    lone.write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "while True: signal.pause()"
    )
    with pytest.raises(Interrupted, match="no process reported what it saved"):
        run_local("lone", [], 1)


def test_a_lone_rank_may_make_a_group(lone: Path) -> None:
    lone.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "assert (dist.get_rank(), dist.get_world_size()) == (0, 1)"
    )
    run_local("lone", [], 1)


def test_processes_share_the_processors_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "cpus", lambda: 6)  # that a container's quota counts: test_machine.py
    assert [_environment(processes)["OMP_NUM_THREADS"] for processes in (2, 4, 10)] == ["3", "1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _environment(10_000)["OMP_NUM_THREADS"] == "3"


def test_a_traceback_begins_with_the_users_lines() -> None:
    def of_the_user() -> None:
        raise KeyError("width")

    try:
        World(0, 1, torch.device("cpu")).decided(of_the_user)
    except KeyError as error:
        error.__traceback__ = (
            error.__traceback__.tb_next if error.__traceback__ else None
        )  # ours is the first
        shown = own_lines(error)
    assert shown.splitlines()[0].startswith("Traceback")
    assert "in decided" not in shown
    assert "of_the_user" in shown
    assert shown.endswith("KeyError: 'width'\n")
