"""`ddpipe run` and `ddpipe tune` as far as they start and end: the steps have tests of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.api import RunPlan
from ddpipe.errors import DdpipeError, Diverged, Interrupted, NotWritable, ReplicaFailed
from ddpipe.runs import Run
from ddpipe.tune.study import Study


def _output(arguments: list[str]) -> str:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).output


def _fail(monkeypatch: pytest.MonkeyPatch, kind: type[DdpipeError], *, begun: bool) -> None:
    """The steps of a run, or of a study, end with an error."""

    def failing(begin: RunPlan | Study, *_: object, **__: object) -> None:
        if begun:
            folder = Path(begin.folder if isinstance(begin, Study) else begin.run.uri)
            folder.mkdir(parents=True)
            (folder / "begun.json").touch()
        raise kind(what="it failed", which="here", seen="something", do=f"Look at it. {Interrupted.AGAIN}")

    monkeypatch.setattr("ddpipe.api.RunPlan.carry_out", failing)
    monkeypatch.setattr("ddpipe.commands.tune.tune_here", failing)


@pytest.mark.parametrize("kind", [Interrupted, NotWritable, ReplicaFailed])
def test_a_run_named_by_the_time_says_how_it_is_resumed(
    kind: type[DdpipeError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command alone would begin another run."""
    _fail(monkeypatch, kind, begun=True)
    seen = _output(["run", "--runs", str(tmp_path)])
    (run,) = tmp_path.iterdir()
    assert f"Look at it. To resume: ddpipe run --runs {tmp_path} --run {run.name}\n" in seen


def test_a_training_named_by_the_time_says_how_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was named is resumed by the same command, and pods have their run's name from the engine."""

    def failing(begun: Run, *_: object, **__: object) -> None:
        with begun.step("train"):
            raise Interrupted(what="it stopped", which="here", seen="a signal", do=Interrupted.AGAIN)

    monkeypatch.setattr("ddpipe.workflow.train", failing)
    command = ["train", "--dataset", "/datasets/toys/0123/manifest.json", "--runs", str(tmp_path)]
    seen = _output(command)
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("toys-")
    assert f"here: a signal. To resume: ddpipe {' '.join(command)} --run {run.name}\n" in seen
    assert f"here: a signal. {Interrupted.AGAIN}\n" in _output([*command, "--run", "mine"])


def test_a_study_named_by_the_time_says_how_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, Interrupted, begun=True)
    monkeypatch.chdir(tmp_path)
    seen = _output(["tune", "--search", "learning_rate=0.1..1"])
    (study,) = (tmp_path / "studies").iterdir()
    assert f"To resume: ddpipe tune --search learning_rate=0.1..1 --study {study.name}\n" in seen


@pytest.mark.parametrize(
    ("kind", "begun"),
    [(NotWritable, False), (Diverged, True)],
)
def test_errors_that_nothing_resumes_stay_as_they_are(
    kind: type[DdpipeError], begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, kind, begun=begun)
    assert "To resume" not in _output(["run", "--runs", str(tmp_path)])


def test_a_named_run_is_resumed_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail(monkeypatch, Interrupted, begun=True)
    place = str(tmp_path / "my runs")
    assert f"To resume: ddpipe run --run mine --runs '{place}'\n" in _output(
        ["run", "--run", "mine", "--runs", place]
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_has_the_exit_code_of_shells(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpipe.api.RunPlan._steps", lambda _: os.kill(os.getpid(), number))
    ended = CliRunner().invoke(cli, ["run", "--runs", str(tmp_path), "--store", str(tmp_path / "store")])
    assert ended.exit_code == code
    assert "To resume" not in ended.stderr, "nothing was written"
