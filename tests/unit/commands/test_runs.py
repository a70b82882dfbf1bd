"""`ddpipe runs` lists and shows the runs in a folder; those on a server are in tests/unit/engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddpipe.__main__ import cli
from ddpipe.errors import Interrupted, ParameterError, SourceError, Unreachable
from ddpipe.runs import Run
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KFP_ENDPOINT", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


def listed(folder: Path) -> dict[str, str]:
    """The state of each run."""
    runs: list[dict[str, Any]] = json.loads(ddpipe("runs", "ls", "--runs", str(folder), "--json").stdout)[
        "runs"
    ]
    return {run["run_id"]: run["state"] for run in runs}


def a_run(folder: Path, name: str, *steps: str, error: Exception | None = None) -> Run:
    run = Run.named(str(folder), name)
    for step in steps:
        with run.step(step) as facts:
            facts["step"] = step
    if error:
        with pytest.raises(type(error)), run.step("train"):
            raise error
    return run


def parts(kind: Any) -> Exception:
    error: Exception = kind(what="a", which="b", seen="c", do="d")
    return error


def test_runs_of_a_folder_are_listed_with_their_state(tmp_path: Path) -> None:
    a_run(tmp_path, "whole", "prepare", "train", "evaluate", "export")
    a_run(tmp_path, "half", "prepare")
    a_run(tmp_path, "broken", "prepare", error=parts(Unreachable))
    a_run(tmp_path, "stopped", "prepare", error=parts(Interrupted))
    with lease(open_store(a_run(tmp_path, "busy", "prepare").uri)):
        assert listed(tmp_path) == {
            "whole": "SUCCEEDED",
            "half": "UNFINISHED",
            "broken": "FAILED",
            "stopped": "STOPPED",
            "busy": "RUNNING",
        }


def test_the_newest_runs_are_listed_first(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        a_run(tmp_path, name, "prepare")
    shown = ddpipe("runs", "ls", "--runs", str(tmp_path), "--count", "2").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["RUN", "third", "second"]


def test_a_run_that_trains_shows_how_far_it_is(tmp_path: Path) -> None:
    run = a_run(tmp_path, "first", "prepare")
    open_store(run.training).write("progress.txt", b"progress=0.42 step=420 seconds_left=580")
    assert "42 %, 9 min" in ddpipe("runs", "ls", "--runs", str(tmp_path)).stdout
    a_run(tmp_path, "first", "train")
    assert "42 %" not in ddpipe("runs", "ls", "--runs", str(tmp_path)).stdout


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert ddpipe("runs", "ls", "--runs", str(tmp_path)).stdout == "no runs\n"
    assert not list(tmp_path.iterdir())


def test_a_run_is_shown_by_its_name(tmp_path: Path) -> None:
    run = a_run(tmp_path, "first", "prepare", "train")
    shown = ddpipe("runs", "show", "first", "--runs", str(tmp_path)).stdout
    assert shown.splitlines()[:2] == ["first  UNFINISHED", run.uri]
    assert "  train        SUCCEEDED 0 s" in shown


def test_an_unknown_run_without_a_server_says_how_to_name_one(tmp_path: Path) -> None:
    ended = ddpipe("runs", "show", "first", "--runs", str(tmp_path))
    assert ended.exit_code == ParameterError.exit_code
    assert f"{tmp_path}/first: the folder has no run of this name" in ended.stderr
    assert "--endpoint" in ended.stderr


def test_a_rejected_run_leaves_no_folder(tmp_path: Path) -> None:
    place = ("--runs", str(tmp_path / "runs"), "--store", str(tmp_path / "store"), "--run", "first")
    ended = ddpipe("run", *place, "--source", "folder", "--source-path", str(tmp_path / "none"))
    assert ended.exit_code == SourceError.exit_code
    assert not list(tmp_path.iterdir())


def test_a_rejected_training_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    place = ("--runs", str(tmp_path / "runs"), "--run", "first")
    assert ddpipe("train", "--dataset", str(manifest), *place).exit_code != 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["manifest.json", "runs"]
