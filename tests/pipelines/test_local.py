"""The whole pipeline on this machine, as a user starts it: four steps, two training processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands_here import ddpipe
from processes import Process, processes, until
from training_runs import final

from ddpipe.errors import DatasetError, Interrupted
from ddpipe.model.package import load_package
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease

pytestmark = pytest.mark.slow

DDPIPE = (sys.executable, "-m", "ddpipe")


def ddpipe_run(folder: Path, *options: str) -> Result:
    return ddpipe(folder, "run", "--json", *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


RUN = ("run", "--json", "--processes", "2", "--epochs", "8")


@pytest.fixture(scope="module")
def first(folder: Path) -> dict[str, Any]:
    """A run to which nobody listens: `ddpipe run --json 2>&1 >summary | head -1` is gone after one line."""
    command = [*DDPIPE, *RUN, "--run", "first"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stderr
        running.stderr.readline()
        running.stderr.close()
        summary: dict[str, Any] = json.loads(running.stdout.read())
        assert running.wait() == 0, summary
    return summary


def test_it_learns_digits(first: dict[str, Any]) -> None:
    assert first["metrics"]["test"]["accuracy"]["value"] >= 0.95


def test_a_run_continues_after_its_output_is_closed(folder: Path, first: dict[str, Any]) -> None:
    assert (folder / first["model"] / "model.onnx").is_file()
    assert list(first["seconds"]) == ["prepare", "train", "evaluate", "export"]


def test_the_exported_model_is_complete(folder: Path, first: dict[str, Any]) -> None:
    package = load_package(str(folder / first["model"]))
    assert package.lineage["dataset"]["id"] == first["dataset_id"]
    accuracy = package.metrics.scores["accuracy"].value
    assert accuracy == first["metrics"]["test"]["accuracy"]["value"]


@pytest.mark.parametrize("report", ["report", "data_report"])
def test_a_report_is_one_file_that_fetches_nothing(folder: Path, first: dict[str, Any], report: str) -> None:
    page = (folder / first[report]).read_text()
    assert first["dataset_id"] in page
    for fetching in ("<script", "<link", 'src="http', "url(http"):
        assert fetching not in page


def test_a_run_on_unchanged_data_reuses_the_model(
    folder: Path, first: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    done = ddpipe_run(folder, "--run", "again", *RUN[2:], "--if-unchanged", "reuse")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["unchanged_since"].startswith("first, ")
    assert "nothing changed since run first, " in caplog.text
    assert summary["seconds"]["train"] < first["seconds"]["train"] / 5
    assert summary["model"] == first["model"]
    assert summary["metrics"] == first["metrics"]
    assert {path.name for path in (folder / "runs/again").iterdir()} == {"data.html", "report.html", "steps"}


def test_sigterm_saves_the_state_and_the_command_resumes(
    folder: Path, first: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The second run on this store, so it also shows that the dataset version is reused."""
    command = [*DDPIPE, *RUN, "--run", "stopped"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        for line in running.stderr:
            if "epoch=2/" in line:
                break
        os.kill(running.pid, signal.SIGTERM)
        output, rest = running.communicate()
    assert running.returncode == Interrupted.exit_code, rest
    assert json.loads(output)["error"] == "Interrupted"
    caplog.set_level("INFO")
    done = ddpipe_run(folder, "--run", "stopped", *RUN[2:])
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert json.loads((folder / "runs/stopped/training/training.json").read_text())["resumed_from"]
    assert summary["metrics"]["test"] == first["metrics"]["test"]
    assert summary["dataset_id"] == first["dataset_id"]
    assert summary["reused"]
    assert "is unchanged" in caplog.text


def test_only_one_process_works_on_a_run(folder: Path, first: dict[str, Any]) -> None:
    before = (folder / first["report"]).stat().st_mtime_ns
    with lease(open_store(str(folder / "runs/first"))):
        refused = ddpipe_run(folder, "--run", "first", *RUN[2:])
    assert json.loads(refused.stdout)["error"] == "ParameterError"
    assert "renews its lease" in refused.stderr
    assert (folder / first["report"]).stat().st_mtime_ns == before


def test_a_run_keeps_to_its_dataset(folder: Path, first: dict[str, Any]) -> None:
    pages = [folder / first[name] for name in ("data_report", "report")]
    before = [page.read_bytes() for page in pages]
    for _ in range(2):
        refused = ddpipe_run(folder, "--run", "first", "--split-seed", "1")
        assert json.loads(refused.stdout)["error"] == "ParameterError"
        assert "trained on another dataset version" in refused.stderr
    assert [page.read_bytes() for page in pages] == before


def test_a_dataset_version_is_used_by_its_short_id(folder: Path, first: dict[str, Any]) -> None:
    short = first["dataset_id"][:8]
    done = ddpipe_run(folder, "--run", "short", "--dataset", short, "--epochs", "1")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["dataset_id"], summary["reused"]) == (first["dataset_id"], True)
    assert first["dataset_id"] in (folder / summary["data_report"]).read_text()
    evaluated = ddpipe(folder, "evaluate", "--run", "short", "--dataset", short, "--json")
    assert json.loads(evaluated.stdout)["accuracy"] == summary["metrics"]["test"]["accuracy"]["value"]


def test_a_run_rejects_another_dataset(folder: Path, first: dict[str, Any]) -> None:
    other = ddpipe(folder, "prepare", "--split-seed", "7")
    refused = ddpipe_run(folder, "--run", "first", "--dataset", other.stdout.strip())
    assert json.loads(refused.stdout)["error"] == "ParameterError"
    assert "trained on another dataset version" in refused.stderr


def test_nothing_outlives_a_run_that_was_killed(folder: Path, first: dict[str, Any]) -> None:
    """Its rank; what that did is saved."""
    command = [*DDPIPE, "run", "--run", "killed", "--epochs", "100000"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        try:
            assert any("epoch=2/" in line for line in running.stderr)
            assert len(at_work(folder)) > 1
        finally:
            running.kill()
    until(lambda: not at_work(folder))
    assert final(str(folder / "runs/killed/training")).step > 0


def at_work(folder: Path) -> list[Process]:
    return [process for process in processes() if process.folder == folder]


def test_a_damaged_shard_ends_the_run_with_the_steps_own_error(
    folder: Path, first: dict[str, Any], tmp_path: Path
) -> None:
    for shard in (folder / "store/shards").iterdir():
        damaged = tmp_path / "store/shards" / shard.name
        damaged.parent.mkdir(parents=True, exist_ok=True)
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
    (tmp_path / "store/datasets").symlink_to(folder / "store/datasets")
    done = ddpipe_run(tmp_path, "--run", "damaged")
    assert done.exit_code == DatasetError.exit_code, done.stderr
    ended = json.loads(done.stdout)
    assert ended["error"] == "DatasetError"
    assert "Traceback" not in done.stderr
