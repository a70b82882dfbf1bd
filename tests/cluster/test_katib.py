"""A search with Katib on digits, whose trials are every kind of job; variables as for test_training.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from place import OUR_IMAGES, STORE_SECRET, Place, a_place, eventually, patch
from step import Step
from test_training import digits
from workflows import Ran, reported_accuracy, workflow_of, workflows_of

from ddpipe.errors import ParameterError, PodRefused, ReplicaFailed
from ddpipe.kube.api import ApiServer, Refused
from ddpipe.pipelines.compile import COMPILED
from ddpipe.pipelines.training import TUNED
from ddpipe.storage import read_uri

__all__ = ["digits"]

pytestmark = pytest.mark.cluster
WORKFLOW = COMPILED / "ddpipe-training-tuned-minikf.yaml"
SMALL = {
    "backend": "pytorchjob",
    **dict.fromkeys(("memory", "step_memory"), "2Gi"),
    "cpu": "400m",
    "epochs": 2,
    "parallel_trials": 2,
    "pruning": "none",
}
DATABASE = "kubernetes.io/service-name=katib-db-manager"
EXPERIMENTS = "/apis/kubeflow.org/v1beta1/namespaces/{}/experiments"
LABELS = {
    "katib.kubeflow.org/metrics-collector-injection": "enabled",
    # The containers of Katib itself have no securityContext unless its ConfigMap says so.
    "pod-security.kubernetes.io/enforce": "baseline",
}


def missing_katib(admin: ApiServer) -> str:
    """Why no search can run; empty if one can. Without its database manager, Katib fails every trial."""
    try:
        admin.get(EXPERIMENTS.format("default"))
    except Refused as error:
        return f"the cluster has no Katib: {error}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/kubeflow/endpointslices?labelSelector={DATABASE}"
    places = [
        (address, item["ports"][0]["port"])
        for item in admin.get(slices)["items"]
        for end in item.get("endpoints") or ()
        for address in end["addresses"]
    ]
    refused = list(filter(_refuses, places))
    return f"Katib's database manager takes no connections at {refused}" if refused == places else ""


def _refuses(place: tuple[str, int]) -> bool:
    """Whether nothing listens there; what cannot be reached from this machine may listen."""
    try:
        socket.create_connection(place, timeout=3).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


@pytest.fixture
def place(
    admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str], request: pytest.FixtureRequest
) -> Iterator[Place]:
    if missing := missing_katib(admin):
        pytest.skip(missing)
    with a_place(admin, tmp_path, backend=getattr(request, "param", "pytorchjob")) as found:
        patch(admin, f"/api/v1/namespaces/{found.namespace}", {"metadata": {"labels": LABELS}})
        keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
        data = {key: s3_environment[name] for key, name in keys.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": data}
        found.create("/api/v1/secrets", secret)
        yield found


def search(place: Place, environment: dict[str, str], dataset: str, runs: str, *options: str) -> Step:
    arguments = [
        *(
            "tune",
            "--on",
            "katib",
            "--dataset",
            dataset,
            "--run",
            "a",
            "--runs",
            runs,
            "--image",
            OUR_IMAGES.format("trainer"),
        ),
        *("--cpu", "400m", "--memory", "2Gi", "--s3-secret", "store"),
        *("--s3-endpoint", environment["POD_S3_ENDPOINT"], "--epochs", "2", "--pruning", "none", "--json"),
        *("--trials", "2", "--parallel-trials", "2", *place.chosen(())),
    ]
    return Step(place, [*arguments, *options], environment)


def left(place: Place) -> list[Any]:
    """Experiments, and pods of their samplers and trials, that nobody has asked to go."""
    experiments = place.admin.get(EXPERIMENTS.format(place.namespace))["items"]
    pods = place.admin.get(f"/api/v1/namespaces/{place.namespace}/pods")["items"]
    return [
        item["metadata"]["name"]
        for item in [*experiments, *pods]
        if "deletionTimestamp" not in item["metadata"]
        and "workflows.argoproj.io/workflow" not in item["metadata"].get("labels", {})
    ]


@pytest.mark.parametrize(
    ("place", "sampler"),
    [("pytorchjob", "tpe"), ("indexedjob", "random"), ("trainjob", "tpe")],
    indirect=["place"],
)
def test_a_search_ends_with_its_best_recipe(
    place: Place, sampler: str, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    space = ("--search", "learning_rate=0.01..0.2", "--search", "momentum=0.5..0.95")
    options = (*space, "--sampler", sampler, "--trials", "6")
    ended = search(place, s3_environment, *digits, *options).end(800)
    assert ended.code == 0, ended.text
    found = json.loads(ended.text.splitlines()[-1])
    assert found["trials"] == {"succeeded": 6}, ended.text
    assert found["best"]["score"] > 0.5
    for name in ("learning_rate", "momentum"):
        assert found["recipe"][name] == float(found["best"]["values"][name])
    assert eventually(lambda: left(place), lambda items: not items) == []


def test_a_killed_search_is_adopted_and_a_stopped_one_leaves_nothing(
    place: Place, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    options = ("--search", "learning_rate=0.01..0.2", "--trials", "20")
    first = search(place, s3_environment, *digits, *options)
    first.saw("created Experiment")
    first.kill()
    second = search(place, s3_environment, *digits, *options)
    second.saw("adopted Experiment")
    second.saw("running: ")
    assert second.terminate().code in {143, -9}
    assert eventually(lambda: left(place), lambda items: not items) == []


def test_a_space_that_is_wrong_creates_nothing(
    place: Place, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    ended = search(place, s3_environment, *digits, "--search", "learning_rate=0.2..0.1").end()
    assert ended.code == ParameterError.exit_code, ended.text
    assert "the lower limit 0.2 is not below the upper limit 0.1" in ended.text
    assert left(place) == []


def test_a_namespace_that_rejects_the_pods_of_katib_is_named(
    place: Place, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    patch(place.admin, f"/api/v1/namespaces/{place.namespace}", {"metadata": {"labels": level}})
    ended = search(place, s3_environment, *digits, "--search", "learning_rate").end()
    assert ended.code == PodRefused.exit_code, ended.text
    assert "violates PodSecurity" in ended.text
    assert "Let Katib's ConfigMap katib-config" in ended.text
    assert eventually(lambda: left(place), lambda items: not items) == []


def test_a_search_whose_trials_fail_has_their_cause(
    place: Place, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    options = ("--search", "learning_rate=0.1..1", "--model", "nowhere:net")
    ended = search(place, s3_environment, *digits, *options).end(400)
    assert ended.code == ReplicaFailed.exit_code, ended.text
    assert "nowhere" in ended.text
    assert eventually(lambda: left(place), lambda items: not items) == []


def test_a_trial_below_the_median_stops_early(
    place: Place, s3_environment: dict[str, str], digits: tuple[str, str]
) -> None:
    config = place.admin.get("/api/v1/namespaces/kubeflow/configmaps/katib-config")
    if "medianstop" not in str(config["data"]):
        pytest.skip("the Katib of this cluster has no medianstop")
    options = ("--search", "learning_rate=0.1,0.05,0.000001", "--sampler", "random", "--trials", "9")
    ended = search(place, s3_environment, *digits, *options, "--epochs", "12", "--pruning", "median").end(
        1000
    )
    assert ended.code == 0, ended.text
    found = json.loads(ended.text.splitlines()[-1])
    assert found["trials"].keys() == {"succeeded", "stopped early"}
    assert sum(found["trials"].values()) == 9
    assert found["recipe"]["learning_rate"] > 0.01
    assert eventually(lambda: left(place), lambda items: not items) == []


@pytest.fixture
def submit(place: Place, admin: ApiServer, root: str) -> Callable[..., Ran]:
    """Submit the package for KFP 1.x that searches."""
    secret = admin.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")
    place.create("/api/v1/secrets", {**secret, "metadata": {"name": STORE_SECRET}})

    def submitted(**parameters: object) -> Ran:
        given = {**SMALL, "runs": f"{root}/runs", "store": f"{root}/store", **parameters}
        made = admin.create(workflows_of(place), workflow_of(given, WORKFLOW, TUNED))
        return Ran(place, made["metadata"]["name"], f"{root}/runs")

    return submitted


def test_a_pipeline_trains_with_the_best_recipe(place: Place, submit: Callable[..., Ran]) -> None:
    ran = submit(search=["learning_rate=0.01..0.2"], trials=4)
    assert ran.ended(1000) == "Succeeded", ran.failure()
    best = json.loads(read_uri(f"{ran.folder}/best.json"))["recipe"]
    trained = json.loads(read_uri(f"{ran.folder}/training/training.json"))["recipe"]
    assert trained["learning_rate"] == best["learning_rate"]
    assert reported_accuracy(ran) > 0.5
    assert eventually(lambda: left(place), lambda items: not items) == []


def test_a_terminated_pipeline_leaves_no_search(place: Place, submit: Callable[..., Ran]) -> None:
    ran = submit(search=["learning_rate=0.01..0.2"], trials=50)
    assert eventually(place.pods, bool, 600), ran.failure()
    place.patch(ran.path, {"spec": {"shutdown": "Terminate"}})
    assert eventually(lambda: left(place), lambda items: not items) == []
    assert ran.ended(90) == "Failed"
