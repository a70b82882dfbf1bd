"""A function launched from a notebook onto two pods: its value comes back, also to another kernel.

Configure the cluster, the object store and the images as for test_training.py.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from place import OUR_IMAGES, Place, a_place, let_launch_from_notebooks

from ddpipe.kube.api import ApiServer

pytestmark = pytest.mark.cluster

NOTEBOOK = Path(__file__).parents[2] / "pipelines" / "launching.ipynb"

KERNEL = """
import json, os, sys
import ddpipe

def summed(rounds):
    import torch
    from ddpipe.distributed import process_group
    with process_group() as world:
        for step in range(rounds):
            total = int(world.sum(torch.tensor(world.rank + 1)))
            print(f"step={step} loss={1 / (step + 1)}")
        with open(os.path.join(os.environ["DDPIPE_OUTPUTS"], "note.txt"), "w") as note:
            note.write(f"{world.size} ranks")
        return {"total": total}

def failing():
    raise ValueError("the data is of another kind")

def endless():
    import time
    while True:
        print("step=1 loss=1.0")
        time.sleep(0.5)
"""


class Kernel:
    """A notebook's kernel: cells that are run in one process, which then is gone."""

    def __init__(self, place: Place, environment: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            **environment,
            "KUBECONFIG": str(place.kubeconfig),
            "DDPIPE_CACHE": str(folder / "cache"),
        }

    def runs(self, cells: str) -> dict[str, Any]:
        """What the last line of its output says."""
        done = subprocess.run(
            [sys.executable, "-c", KERNEL + cells],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return values


@pytest.fixture
def place(admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str]) -> Iterator[Place]:
    with a_place(admin, tmp_path) as place:
        keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
        data = {key: base64.b64encode(s3_environment[name].encode()).decode() for key, name in keys.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": data}
        place.create("/api/v1/secrets", secret)
        let_launch_from_notebooks(place)
        yield place


@pytest.fixture
def given(s3_environment: dict[str, str]) -> str:
    """Python that says where a launch goes."""
    options = {
        "runs": f"s3://{s3_environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}",
        "image": OUR_IMAGES.format("trainer"),
        "backend": "pytorchjob",
        "cpu": "400m",
        "memory": "1Gi",
        "s3_secret": "store",
        "s3_endpoint": s3_environment["POD_S3_ENDPOINT"],
    }
    return f"\ngiven = {options!r}\nruns = given['runs']\n"


def test_two_pods_run_a_function_and_another_kernel_gets_its_value(
    place: Place,
    given: str,
    s3_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    first = Kernel(place, s3_environment, tmp_path)
    launched = first.runs(
        given
        + "handle = ddpipe.launch(summed, nodes=2, args={'rounds': 40}, name='sum', **given)\n"
        + "print(json.dumps(handle.status().phase))"
    )
    assert launched == "running"
    # Restarted: the launcher of the first kernel is still at it.
    values = first.runs(
        given
        + "handle = ddpipe.attach('sum', runs)\n"
        + "value = handle.result()\n"
        + "lines = list(handle.logs())\n"
        + "notes = [path.read_text() for path in handle.outputs('fetched')]\n"
        + "print(json.dumps([value, notes, handle.status().phase, lines]))"
    )
    value, notes, phase, lines = values  # type: ignore[misc]
    assert (value, notes, phase) == ({"total": 3}, ["2 ranks"], "succeeded")
    assert len([line for line in lines if "step=39 loss=0.025" in line]) == 2
    assert place.jobs() == []


def test_where_the_launcher_is_gone_too_attaching_adopts_the_job(
    place: Place,
    given: str,
    s3_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    first = Kernel(place, s3_environment, tmp_path)
    first.runs(
        given
        + "handle = ddpipe.launch(endless, nodes=2, name='on', **given)\n"
        + "any('step=1' in line for line in handle.logs(follow=True))\n"
        + "handle._machine._process.kill()\n"
        + "print(json.dumps(''))"
    )
    (job,) = place.jobs()
    (tmp_path / "elsewhere").mkdir()
    other = Kernel(place, s3_environment, tmp_path / "elsewhere")
    adopted = other.runs(
        given
        + "handle = ddpipe.attach('on', runs)\n"
        + "line = next(line for line in handle.logs(follow=True) if 'adopted' in line)\n"
        + "running = handle.status().phase\n"
        + "print(json.dumps([line, running, handle.stop().phase, ddpipe.attach('on', runs).status().phase]))"
    )
    line, *phases = adopted  # type: ignore[misc]
    assert job["metadata"]["name"] in line
    assert phases == ["running", "stopped", "stopped"]
    assert place.jobs() == []


def test_a_function_that_fails_on_pods_reports_its_error(
    place: Place,
    given: str,
    s3_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    values = Kernel(place, s3_environment, tmp_path).runs(
        given
        + "handle = ddpipe.launch(failing, nodes=2, name='bad', **given)\n"
        + "status = handle.wait()\n"
        + "print(json.dumps([status.phase, type(status.error).__name__, str(status.error)]))"
    )
    phase, kind, message = values  # type: ignore[misc]
    assert (phase, kind) == ("failed", "ReplicaFailed"), message
    assert "ValueError: the data is of another kind" in message, message
    assert place.jobs() == []


def test_the_notebook_runs_on_two_pods(
    place: Place,
    s3_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {
        **s3_environment,
        "KUBECONFIG": str(place.kubeconfig),
        "DDPIPE_RUNS": f"s3://{s3_environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}",
        "DDPIPE_IMAGE": OUR_IMAGES.format("trainer"),
        "DDPIPE_S3_SECRET": "store",
        "DDPIPE_S3_ENDPOINT": s3_environment["POD_S3_ENDPOINT"],
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    launch, result = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"][2:4]
    assert ">succeeded</b>" in launch[0].data["text/html"]
    assert result[0].text.startswith("2 ranks, accuracy 0.9")
    assert place.jobs() == []
