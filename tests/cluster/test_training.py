"""Digits, trained by two pods with DDP over gloo, from and into an object store; evaluated afterwards.

S3_ENDPOINT is the object store as this machine reaches it, POD_S3_ENDPOINT as pods do, and the usual
AWS_* variables (or their LAB_S3_* counterparts); the image by DDPIPE_TEST_IMAGES, as in test_workflow.py.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from place import OUR_IMAGES, Place, a_place, delete, eventually
from step import Step

from ddpipe.errors import ReplicaFailed
from ddpipe.jobs import BACKENDS
from ddpipe.kube.api import ApiServer

pytestmark = pytest.mark.cluster
IMAGE = OUR_IMAGES.format("trainer")
GUIDE = Path(__file__).parents[2] / "docs/guides/own.md"


def ddpipe(environment: dict[str, str], *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "ddpipe", *arguments, "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


@pytest.fixture
def digits(s3_environment: dict[str, str]) -> tuple[str, str]:
    """Digits in a store of a test's own: the dataset, and where runs go."""
    store = f"s3://{s3_environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}"
    facts = ddpipe(s3_environment, "prepare", "--source", "digits", "--store", store)
    return str(facts["dataset"]), f"{store}/runs"


def train(place: Place, environment: dict[str, str], digits: tuple[str, str], *options: str) -> Step:
    """Start the training of digits by two pods."""
    keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
    data = {key: base64.b64encode(environment[name].encode()).decode() for key, name in keys.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": data}
    place.create("/api/v1/secrets", secret)
    dataset, runs = digits
    arguments = [
        *("train", "--dataset", dataset, "--image", IMAGE, "--run", "a", "--runs", runs),
        *("--nodes", "2", "--cpu", "400m", "--memory", "2Gi"),
        *("--s3-secret", "store", "--s3-endpoint", environment["POD_S3_ENDPOINT"]),
    ]
    return Step(place, [*arguments, *options], environment)


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_two_pods_train_digits_and_leave_a_good_model(
    admin: ApiServer,
    tmp_path: Path,
    s3_environment: dict[str, str],
    digits: tuple[str, str],
    backend: str,
) -> None:
    with a_place(admin, tmp_path, backend=backend) as place:
        ended = train(place, s3_environment, digits, *place.chosen(()), "--epochs", "5").end()
        assert ended.code == 0, ended.text
        assert place.jobs() == []
        # A TrainJob's pods go by way of its JobSet and Job, each after the other.
        assert eventually(place.pods, lambda pods: not pods) == []
    dataset, runs = digits
    assert "[worker-0] training digits-cnn on digits" in ended.text
    assert "processes: 2" in ended.text
    assert re.findall(r"epoch=(\d)", ended.text) == ["1", "2", "3", "4", "5"]
    evaluation = ddpipe(s3_environment, "evaluate", "--dataset", dataset, "--run", "a", "--runs", runs)
    assert float(str(evaluation["accuracy"])) > 0.9, evaluation


def test_a_trainjob_says_how_far_it_is(
    admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    """Kubeflow Trainer 2.2 and later, whose feature TrainJobStatus is on."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.kubeflow.org"
    if "trainerStatus" not in json.dumps(admin.get(crd)):
        pytest.skip("this cluster's TrainJobs have no trainerStatus: it comes with Trainer 2.2")
    with a_place(admin, tmp_path, backend="trainjob") as place:
        step = train(place, s3_environment, digits, *place.chosen(()), "--epochs", "40")
        step.saw("epoch=2/")

        def status() -> dict[str, Any]:
            return {
                name: value
                for job in place.jobs()
                for name, value in job.get("status", {}).get("trainerStatus", {}).items()
            }

        shown = eventually(status, lambda found: len(found.get("metrics", ())) > 1)
        ended = step.end()
        assert ended.code == 0, ended.text
    assert 0 < shown["progressPercentage"] < 100, shown
    assert {"step", "accuracy"} <= {metric["name"] for metric in shown["metrics"]}


def test_functions_of_the_working_directory_are_shipped_to_the_pods(
    admin: ApiServer,
    tmp_path: Path,
    s3_environment: dict[str, str],
    digits: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image has no mine.py; the guide's network, loss and augmentation are in it."""
    blocks = re.findall(r"```py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text("\n".join(block for block in blocks if "\ndef " in block))
    monkeypatch.chdir(tmp_path)
    own = ("--model", "mine:network", "--loss", "mine:focal", "--augmentation", "mine:turned")
    with a_place(admin, tmp_path) as place:
        ended = train(place, s3_environment, digits, *own, "--backend", "pytorchjob", "--epochs", "3").end()
        assert place.jobs() == []
    assert ended.code == 0, ended.text
    assert "[worker-0] training mine:network on digits" in ended.text
    assert re.findall(r"epoch=(\d)", ended.text) == ["1", "2", "3"]
    run = ("--run", "a", "--runs", digits[1], "--network", "mine:network")
    assert float(str(ddpipe(s3_environment, "evaluate", *run)["accuracy"])) > 0.3
    assert ddpipe(s3_environment, "export", *run)["model"]


def test_lost_pod_of_an_indexed_job_restarts_every_rank(
    admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    """Another pod with the same host name replaces it; training resumes from its last checkpoint."""
    with a_place(admin, tmp_path) as place:
        options = ("--backend", "indexedjob", "--restart", "OnFailure", "--epochs", "40")
        step = train(place, s3_environment, digits, *options)
        step.saw("epoch=3/")
        gone = next(pod["metadata"]["name"] for pod in place.pods() if "-1-" in pod["metadata"]["name"])
        delete(admin, f"/api/v1/namespaces/{place.namespace}/pods/{gone}", gracePeriodSeconds=0)
        ended = step.end()
        assert ended.code == 0, ended.text
        assert eventually(place.pods, lambda pods: not pods) == []
    assert "worker-1 is replaced: its pod was deleted" in ended.text
    epochs = re.findall(r"epoch=(\d+)", ended.text)
    assert sorted(set(epochs), key=int) == [str(epoch) for epoch in range(1, 41)]
    assert epochs[-1] == "40"


def test_one_pod_trains_as_a_plain_job(
    admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    with a_place(admin, tmp_path) as place:
        options = (
            "--backend",
            "indexedjob",
            "--nodes",
            "1",
            "--processes",
            "2",
            "--cpu",
            "800m",
            "--epochs",
            "2",
        )
        ended = train(place, s3_environment, digits, *options).end()
        assert ended.code == 0, ended.text
        assert eventually(place.pods, lambda pods: not pods) == []
    assert "processes: 2" in ended.text


ONE_IS_KILLED = """
import os, signal
from ddpipe.distributed import process_group, run_rank

def work():
    with process_group() as world:
        world.barrier()
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()

run_rank(work)
"""


def test_of_several_processes_in_a_pod_the_killed_one_is_named(admin: ApiServer, tmp_path: Path) -> None:
    """The other one loses contact with it, and might say so first."""
    with a_place(admin, tmp_path) as place:
        size = ("--nodes", "1", "--processes", "2", "--cpu", "800m", "--memory", "2Gi")
        command = ("torchrun", "--no-python", "python", "-c", ONE_IS_KILLED)
        ended = Step(place, ["launch", "--image", IMAGE, "--run-id", "a", *size, "--", *command], {}).end()
        assert place.jobs() == []
    assert ended.code == ReplicaFailed.exit_code, ended.text
    assert "rank 1 in it was killed by SIGKILL" in ended.message, ended.text
