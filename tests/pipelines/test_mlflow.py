"""Runs in a real MLflow server with SQLite: a process of its own, from an environment of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason="needs the extra mlflow")
pytestmark = pytest.mark.installs

_READY = re.compile(r"running on (http://\S+)")
DDPIPE = str(Path(sys.executable).with_name("ddpipe"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. MLFLOW may name an executable, to install nothing."""
    home = tmp_path_factory.mktemp("mlflow")
    program = os.environ.get("MLFLOW", str(home / "env" / "bin" / "mlflow"))
    if "MLFLOW" not in os.environ:
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(home / "env" / "bin" / "python")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home / "env")], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "mlflow"], check=True)
    places = ("--backend-store-uri", f"sqlite:///{home}/db", "--artifacts-destination", str(home / "files"))
    command = [program, "server", *places, "--port", "0", "--workers", "1"]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True) as process,
    ):
        try:
            deadline = time.monotonic() + 300
            while not (ready := _READY.search((home / "log").read_text())):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield ready[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def ask(server: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server}/api/2.0/mlflow/{path}", timeout=60) as answer:  # noqa: S310 - our own
        return dict(json.load(answer))


def start(server: str, folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [DDPIPE, "run", "--source", "digits", *options]
    env = {**os.environ, "MLFLOW_TRACKING_URI": server, **environment}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stderr=subprocess.PIPE)


def found(server: str, folder: Path, run: str) -> dict[str, Any]:
    """The MLflow run of a run."""
    known = json.loads((folder / "runs" / run / "mlflow.json").read_text())["run_id"]
    return dict(ask(server, f"runs/get?run_id={known}")["run"])


def epochs(server: str, of: dict[str, Any], name: str = "validation_accuracy") -> list[int]:
    history = ask(server, f"metrics/get-history?run_id={of['info']['run_id']}&metric_key={name}")
    return [metric.get("step", 0) for metric in history.get("metrics", ())]


def pairs(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: item["value"] for item in items}


def test_a_killed_and_resumed_run_is_one_run_and_the_champion_has_its_tag(
    server: str, tmp_path: Path
) -> None:
    options = ("--run", "a", "--epochs", "5", "--processes", "2", "--gate-model", "digits")
    with start(server, tmp_path, *options) as killed:
        for line in killed.stderr or ():
            if line.startswith("epoch=2/"):
                killed.terminate()
    assert killed.returncode != 0
    began = found(server, tmp_path, "a")
    assert began["info"]["status"] == "KILLED"
    assert epochs(server, began) in ([1, 2], [1, 2, 3])

    resumed = start(server, tmp_path, *options)
    _, said = resumed.communicate()
    assert resumed.returncode == 0, said
    assert "MLflow" not in said
    ended = found(server, tmp_path, "a")
    assert ended["info"]["run_id"] == began["info"]["run_id"]
    assert ended["info"]["status"] == "FINISHED"
    assert epochs(server, ended) == [1, 2, 3, 4, 5]
    assert pairs(ended["data"]["params"])["epochs"] == "5"
    metrics, tags = pairs(ended["data"]["metrics"]), pairs(ended["data"]["tags"])
    assert metrics["evaluate/accuracy"] > 0.9
    (version,) = (tmp_path / "store" / "models" / "digits" / "versions").iterdir()
    assert tags["ddpipe.champion"] == f"digits@{version.name}"
    (used,) = ended["inputs"]["dataset_inputs"]
    assert used["dataset"]["name"] == "digits"
    assert tags["ddpipe.dataset"].startswith(used["dataset"]["digest"])
    files = {
        file["path"] for file in ask(server, f"artifacts/list?run_id={ended['info']['run_id']}")["files"]
    }
    assert files == {"model", "report.html"}
    inside = ask(server, f"artifacts/list?run_id={ended['info']['run_id']}&path=model")["files"]
    assert {"model/model.onnx", "model/package.json"} <= {file["path"] for file in inside}

    again = start(server, tmp_path, "--run", "b", "--epochs", "1", MLFLOW_RUN_ID=ended["info"]["run_id"])
    _, said = again.communicate()
    assert again.returncode == 0, said
    assert found(server, tmp_path, "b")["info"]["run_id"] == ended["info"]["run_id"]


def test_a_run_whose_tracker_is_away_succeeds_with_one_warning_for_each_process(tmp_path: Path) -> None:
    alone = start("http://127.0.0.1:9", tmp_path, "--run", "a", "--epochs", "1")
    _, said = alone.communicate()
    assert alone.returncode == 0, said
    assert "MLflow may lack a part of this run" in said
    assert "Retrying" not in said
    assert not (tmp_path / "runs" / "a" / "mlflow.json").exists()
