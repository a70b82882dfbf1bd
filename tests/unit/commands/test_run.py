"""`ddpipe run` and `ddpipe tune` as far as they start and end: the steps have tests of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.api import RunPlan
from ddpipe.errors import DdpipeError, Diverged, Interrupted, NotWritable, ReplicaFailed
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
        raise kind(what="it failed", which="here", seen="something", do="Run the same command again.")

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
    assert f"again. Add --run {run.name} to the command; otherwise a new run begins." in seen


def test_a_study_named_by_the_time_says_how_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, Interrupted, begun=True)
    monkeypatch.chdir(tmp_path)
    seen = _output(["tune", "--search", "learning_rate=0.1..1"])
    (study,) = (tmp_path / "studies").iterdir()
    assert f"Add --study {study.name} to the command; otherwise a new study begins." in seen


@pytest.mark.parametrize(
    ("kind", "begun", "more"),
    [(Interrupted, True, ["--run", "mine"]), (NotWritable, False, []), (Diverged, True, [])],
)
def test_errors_without_a_name_to_add_stay_as_they_are(
    kind: type[DdpipeError], begun: bool, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, kind, begun=begun)
    assert "to the command; otherwise" not in _output(["run", "--runs", str(tmp_path), *more])
