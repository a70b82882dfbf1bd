"""Our own commands on a real Kubeflow Pipelines backend: submit, runs, schedule.

KFP_ENDPOINT and the rest: as test_kfp.py says. One training is uploaded, stopped, tried again, and run once
more on the same data; at the same time a schedule fires twice.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from engine_commands import ddpipe, facts, refusal
from kfp_run import Run, connected, package_with_test_images, remove_experiment, remove_pipeline
from place import OUR_IMAGES, eventually

from ddpipe.errors import DdpipeError, RunStopped, UnknownToEngine
from ddpipe.kube.api import ApiServer
from ddpipe.pipelines.compile import COMPILED
from ddpipe.storage import open_store, read_uri

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

PATIENCE = 900
SMALL = ("nodes=1", "cpu=400m", "memory=2Gi", "epochs=200", "checkpoint_minutes=0.02")
"""Long enough that clean-up, a minute after the stop, finds it running."""
IMAGE = OUR_IMAGES.format("launcher")
NOTHING = ("nodes=1", "cpu=100m", "memory=128Mi", 'command=["true"]', f"image={IMAGE}")


@dataclass(frozen=True)
class Names:
    """What these tests have on the backend."""

    pipeline: str
    experiment: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--pipeline", self.pipeline, "--experiment", self.experiment)


def assigned(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in ("--set", text))


@pytest.fixture(scope="module")
def names(admin: ApiServer) -> Iterator[Names]:
    client, name = connected(), f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    yield Names(name, name)
    remove_experiment(client, name)
    for pipeline in (name, f"{name}-nothing"):
        remove_pipeline(client, pipeline)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The packages, with the images of these tests."""
    folder = tmp_path_factory.mktemp("packages")
    files = {name: COMPILED / f"ddpipe-{name}.yaml" for name in ("training", "custom-job")}
    return {name: package_with_test_images(file, folder) for name, file in files.items()}


@pytest.fixture(scope="module")
def schedule(names: Names, packages: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A schedule, set twice, that fires while the training runs."""
    where = Names(f"{names.pipeline}-nothing", names.experiment)
    what = ("schedule", "set", names.pipeline, packages["custom-job"], "--cron", "*/30 * * * * *")
    command = (*what, *where.options, *assigned(*NOTHING))
    first, second = facts(*command), facts(*command)
    assert (first["changed"], second["changed"]) == (True, False)
    yield second
    if ddpipe("schedule", "rm", second["schedule_id"]).exit_code not in {0, UnknownToEngine.exit_code}:
        pytest.fail("the schedule stays")


@pytest.fixture(scope="module")
def command(names: Names, packages: dict[str, str], root: str) -> tuple[str, ...]:
    """What submits the training."""
    parameters = assigned(*SMALL, f"runs={root}/runs", f"store={root}/store", "cluster_step_memory=2Gi")
    return ("submit", packages["training"], *names.options, *parameters)


@pytest.fixture(scope="module")
def interrupted(
    schedule: dict[str, Any], command: tuple[str, ...], admin: ApiServer, root: str
) -> dict[str, Any]:
    """A training that was stopped after its first checkpoint."""
    answer: dict[str, Any] = facts(*command)
    assert answer["uploaded"]
    folder = f"{root}/runs/{answer['run_id']}/training"
    assert eventually(lambda: has_content(folder), bool, PATIENCE, pause=0.5), ddpipe(
        "runs", "show", answer["run_id"]
    ).output
    assert facts("runs", "stop", answer["run_id"])["stopped"]
    stopped = refusal(RunStopped, "runs", "show", answer["run_id"], "--wait")
    assert "it was stopped at step train" in stopped["seen"]
    assert Run(connected(), admin, answer["run_id"], folder).jobs() == []
    return answer


def has_content(folder: str) -> bool:
    try:
        return any(True for _ in open_store(folder).list())
    except DdpipeError:
        return False


@pytest.fixture(scope="module")
def retried(interrupted: dict[str, Any]) -> dict[str, Any]:
    """The same run, being tried again."""
    answer: dict[str, Any] = facts("runs", "retry", interrupted["run_id"])
    return answer


@pytest.fixture(scope="module")
def again(interrupted: dict[str, Any], command: tuple[str, ...]) -> dict[str, Any]:
    """Another run on the same data, at the same time."""
    answer: dict[str, Any] = facts(*command, *assigned("epochs=1"))
    return answer


def test_a_schedule_fires_again_and_again_until_it_is_deleted(
    schedule: dict[str, Any], retried: dict[str, Any], again: dict[str, Any]
) -> None:
    def ended() -> list[str]:
        runs = facts("runs", "ls", "--count", "100")["runs"]
        mine = [run["state"] for run in runs if run["schedule_id"] == schedule["schedule_id"]]
        return [state for state in mine if state not in {"PENDING", "RUNNING"}]

    states = eventually(ended, lambda states: len(states) > 1, PATIENCE, pause=2)
    assert states[:2] == ["SUCCEEDED", "SUCCEEDED"]
    facts("schedule", "rm", schedule["schedule_id"])
    refusal(UnknownToEngine, "schedule", "rm", schedule["schedule_id"])


def test_a_stopped_training_resumes_when_its_run_is_retried(retried: dict[str, Any]) -> None:
    assert facts("runs", "show", retried["run_id"], "--wait")["state"] == "SUCCEEDED"
    log = ddpipe("runs", "logs", retried["run_id"], "train").stdout
    steps = re.findall(r"from step (\d+) of", log)
    assert steps, log
    assert int(steps[-1]) > 0


def test_the_same_again_is_the_same_version_and_prepares_nothing(again: dict[str, Any], root: str) -> None:
    assert not again["uploaded"]
    answer = facts("runs", "show", again["run_id"], "--wait")
    assert answer["state"] == "SUCCEEDED"
    assert {step["name"] for step in answer["steps"]} >= {"prepare", "train", "evaluate", "export"}
    record = json.loads(read_uri(f"{root}/runs/{answer['run_id']}/steps/prepare.json"))
    assert record["facts"]["reused"]


def test_the_doctor_finds_the_backend_well(retried: dict[str, Any], packages: dict[str, str]) -> None:
    answer = facts("doctor", packages["training"])
    states = {check["name"]: check["state"] for check in answer["checks"]}
    assert {states[name] for name in ("endpoint", "login", "namespace")} == {"ok"}
    assert "fail" not in states.values()
