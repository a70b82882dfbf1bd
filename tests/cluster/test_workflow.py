"""The package for KFP 1.x, run by a real Argo from our own images, with MinIO: green, retried, terminated.

S3_ENDPOINT        the cluster's MinIO as this machine reaches it (pods: minio-service.kubeflow:9000)
DDPIPE_TEST_IMAGES our images, {} for launcher and trainer; default: ddpipe-{}:dev
DDPIPE_TEST_CIFAR  a tar of <train|test>/<class>/<image>, for the run on photographs
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from kubernetes import client, config
from kubernetes.stream import stream
from place import ACCOUNT, OUR_IMAGES, STORE_SECRET, Place, a_place, delete, eventually, let_deploy
from uploads import KAGGLE, upload_photographs, upload_xrays

from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.errors import DdpipeError
from ddpipe.kube.api import ApiError, ApiServer
from ddpipe.pipelines.compile import COMPILED, compile_v1
from ddpipe.pipelines.training import GATED, TRAINING
from ddpipe.pipelines.wiring import Pipeline
from ddpipe.serve.deploy import MODEL
from ddpipe.serve.rollout import DEPLOYMENTS
from ddpipe.storage import open_store, read_uri

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

WORKFLOW = COMPILED / "ddpipe-training-minikf.yaml"
GATED_WORKFLOW = COMPILED / "ddpipe-training-gated-minikf.yaml"
OURS = r"[\w./:-]+/ddpipe-(launcher|predictor|trainer):[\w.]+"
ENDED = {"Succeeded", "Failed", "Error"}
SMALL = {
    "nodes": 2,
    "cpu": "150m",
    "memory": "2Gi",
    "epochs": 3,
    "step_memory": "2Gi",
}


@dataclass(frozen=True)
class Ran:
    """A workflow, and where its runs lie."""

    place: Place
    name: str
    runs: str

    @property
    def path(self) -> str:
        return f"{workflows_of(self.place)}/{self.name}"

    def seen(self) -> dict[str, Any]:
        return self.place.admin.get(self.path)

    @property
    def phase(self) -> str:
        return str(self.seen().get("status", {}).get("phase", ""))

    def ended(self, seconds: float = 600) -> str:
        """The phase at its end."""
        return eventually(lambda: self.phase, lambda phase: phase in ENDED, seconds)

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.seen()["status"].get("nodes", {}).values())

    def pods(self, phase: str) -> list[str]:
        """Names of the workflow's pods in this phase."""
        query = {"labelSelector": f"workflows.argoproj.io/workflow={self.name}"}
        pods = self.place.admin.get(pods_of(self.place), query)["items"]
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == phase]

    def failure(self) -> str:
        """What went wrong, for the test's own message."""
        states = [f"{one['displayName']}: {one['phase']} {one.get('message', '')}" for one in self.nodes()]
        logs = [
            line.decode()
            for pod in self.pods("Failed")
            for line in self.place.admin.lines(f"{pods_of(self.place)}/{pod}/log", {"container": "main"}, 10)
        ]
        return "\n".join([*states, *logs[-120:]])

    @property
    def folder(self) -> str:
        return f"{self.runs}/{self.seen()['metadata']['uid']}"

    def step(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(read_uri(f"{self.folder}/steps/{name}.json"))
        return record

    def pod_of(self, step: str, but: Sequence[str] = ()) -> str:
        """The running pod of a step, other than those of earlier attempts."""

        def find() -> list[str]:
            return [pod for pod in self.pods("Running") if f"-{step}-" in pod and pod not in but]

        found = eventually(find, bool, 120)
        assert found, self.failure()
        return found[0]


Submit = Callable[..., Ran]


@pytest.fixture(scope="module")
def argo(admin: ApiServer) -> ApiServer:
    try:
        kinds = {item["name"] for item in admin.get("/apis/argoproj.io/v1alpha1")["resources"]}
    except ApiError as error:
        pytest.skip(f"the cluster of KUBECONFIG has no Argo: {error}")
    if "workflows" not in kinds:
        pytest.skip("the cluster of KUBECONFIG has no Argo Workflows")
    return admin


@pytest.fixture(scope="module")
def place(argo: ApiServer, root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One namespace for all of these tests, with what Kubeflow puts into a user's."""
    with a_place(argo, tmp_path_factory.mktemp("place")) as place:
        secret = argo.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")
        place.create("/api/v1/secrets", {**secret, "metadata": {"name": STORE_SECRET}})
        yield place


@pytest.fixture(scope="module")
def submit(place: Place, root: str) -> Submit:
    def submitted(**parameters: object) -> Ran:
        body = workflow_of({**SMALL, "runs": f"{root}/runs", "store": f"{root}/store", **parameters})
        made = place.admin.create(workflows_of(place), body)
        return Ran(place, made["metadata"]["name"], f"{root}/runs")

    return submitted


def workflows_of(place: Place) -> str:
    return f"/apis/argoproj.io/v1alpha1/namespaces/{place.namespace}/workflows"


def pods_of(place: Place) -> str:
    return f"/api/v1/namespaces/{place.namespace}/pods"


def workflow_of(
    parameters: Mapping[str, object], package: Path = WORKFLOW, pipeline: Pipeline = TRAINING
) -> dict[str, Any]:
    """The package as it is compiled, but for the names of the images and the service account."""
    text = re.sub(OURS, lambda match: OUR_IMAGES.format(match[1]), package.read_text())
    workflow: dict[str, Any] = yaml.safe_load(text)
    workflow["spec"]["serviceAccountName"] = ACCOUNT
    given = pipeline.filled(parameters)
    for one in workflow["spec"]["arguments"]["parameters"]:
        value = given.get(one["name"], one["value"])
        one["value"] = value if isinstance(value, str) else json.dumps(value)
    return workflow


@pytest.fixture(scope="module")
def digits(submit: Submit) -> Ran:
    """The whole pipeline, once."""
    ran = submit()
    assert ran.ended() == "Succeeded", ran.failure()
    return ran


def accuracy_of_the_package(ran: Ran, dataset: str) -> float:
    """What onnxruntime says about the test split with the exported model."""
    manifest = load_manifest(dataset)
    test = open_split((manifest, store_of(dataset)), "test")
    session = onnxruntime.InferenceSession(read_uri(f"{ran.folder}/model/model.onnx"))
    (logits,) = session.run(None, {session.get_inputs()[0].name: test.images(range(len(test)))})
    return float(np.mean(np.argmax(logits, axis=1) == test.labels))


def reported_accuracy(ran: Ran) -> float:
    return float(json.loads(read_uri(f"{ran.folder}/evaluation/metrics.json"))["scores"]["accuracy"]["value"])


def test_the_whole_pipeline_succeeds_with_one_job_of_two_pods(digits: Ran) -> None:
    assert digits.place.jobs_ever() == 1
    training = json.loads(read_uri(f"{digits.folder}/training/training.json"))
    assert training["world_size"] == 2
    assert digits.place.jobs() == []


def test_the_exported_model_gives_the_reported_accuracy(digits: Ran) -> None:
    reported = reported_accuracy(digits)
    assert reported > 0.5
    assert accuracy_of_the_package(digits, digits.step("prepare")["facts"]["dataset"]) == pytest.approx(
        reported
    )


def test_the_engine_gets_what_its_ui_shows(digits: Ran) -> None:
    shown = {
        one["displayName"]: {artifact["name"] for artifact in one["outputs"].get("artifacts", [])}
        for one in digits.nodes()
        if one["type"] == "Pod"
    }
    found = {step.partition("(")[0]: names for step, names in shown.items()}
    assert {"mlpipeline-metrics", "mlpipeline-ui-metadata"} <= found["evaluate"] & found["train"]
    assert "mlpipeline-ui-metadata" in found["prepare"] & found["export"]


def test_a_run_on_unchanged_data_reuses_the_earlier_model(digits: Ran, submit: Submit) -> None:
    before, jobs = digits.step("prepare")["facts"], digits.place.jobs_ever()
    again = submit()
    assert again.ended() == "Succeeded", again.failure()
    after = again.step("prepare")["facts"]
    assert (before["reused"], after["reused"]) == (False, True)
    assert before["dataset"] == after["dataset"]
    earlier = digits.folder.rpartition("/")[2]
    assert [again.step(name)["facts"]["same_as"] for name in ("train", "evaluate", "export")] == [earlier] * 3
    assert again.step("export")["facts"]["model"] == f"{digits.folder}/model"
    assert digits.place.jobs_ever() == jobs


@pytest.mark.xdist_group("gated")
def test_a_gated_run_deploys_a_better_model_only(place: Place, root: str) -> None:
    """The engine's own conditions skip what follows a gate that keeps the champion."""
    let_deploy(place)
    deployed = {"service": "photos", "kserve": "no", "serve_cpu": "200m", "serve_memory": "512Mi"}
    given = {
        **SMALL,
        **deployed,
        "backend": "indexedjob",
        "runs": f"{root}/gated",
        "store": f"{root}/store",
        "gate_model": "toys",
    }
    models = []
    for epochs, decision, later in ((6, "promote", "Succeeded"), (1, "keep", None)):
        body = workflow_of(
            {**given, "model": "digits-cnn", "nodes": 1, "epochs": epochs}, GATED_WORKFLOW, GATED
        )
        ran = Ran(place, place.admin.create(workflows_of(place), body)["metadata"]["name"], given["runs"])
        assert ran.ended(900) == "Succeeded", ran.failure()
        assert ran.step("gate")["facts"]["decision"] == decision
        pods = [one for one in ran.nodes() if one["type"] == "Pod"]
        phases = {one["displayName"].partition("(")[0]: one["phase"] for one in pods}
        assert [phases.get(step) for step in ("export", "deploy")] == [later] * 2
        service = place.admin.get(DEPLOYMENTS.path(place.namespace, "photos"))
        models.append(service["metadata"]["annotations"][MODEL])
        assert service["status"]["readyReplicas"] == 1
    assert models[0] == models[1]


@pytest.mark.xdist_group("killed")
def test_a_killed_step_is_retried_and_takes_its_job_up_again(place: Place, submit: Submit) -> None:
    before = place.jobs_ever()
    ran = submit(epochs=150)
    victim = ran.pod_of("train")
    assert eventually(lambda: _steps_of(ran), bool, 180), "training never made a step"
    delete(ran.place.admin, f"{pods_of(ran.place)}/{victim}")
    assert ran.ended() == "Succeeded", ran.failure()
    assert place.jobs_ever() == before + 1


@pytest.mark.xdist_group("stopped")
def test_what_a_killed_launcher_leaves_is_removed_at_the_end(submit: Submit) -> None:
    ran = submit(epochs=100_000)
    assert eventually(lambda: _steps_of(ran), bool, 240), ran.failure()
    _kill_launcher(ran, ran.pod_of("train"))
    assert ran.ended() == "Failed", ran.failure()
    assert any(one["displayName"] == "train" and "137" in one.get("message", "") for one in ran.nodes())
    assert [one["phase"] for one in ran.nodes() if one["displayName"].endswith("onExit")] == ["Succeeded"]
    assert ran.place.jobs() == []


def _kill_launcher(ran: Ran, pod: str) -> None:
    """SIGKILL, as the kernel does it when memory is short; the container's first process is the engine's."""
    script = """if True:
        import os, pathlib
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            if b"ddpipe\\0train" in process.joinpath("cmdline").read_bytes() and process.name != "1":
                os.kill(int(process.name), 9)
    """
    with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
        running = stream(
            client.CoreV1Api(connection).connect_get_namespaced_pod_exec,
            pod,
            ran.place.namespace,
            container="main",
            command=["python", "-c", script],
            stdout=True,
            stderr=True,
            _preload_content=False,
        )
        running.run_forever(timeout=30)
        said = running.read_all()
        running.sock.shutdown()  # its own close() leaves a socket open that the server has closed
    assert said == ""


@pytest.mark.xdist_group("stopped")
@pytest.mark.parametrize(
    "stop", [{"shutdown": "Terminate"}, {"activeDeadlineSeconds": 0}], ids=["terminated", "deadline"]
)
def test_a_stopped_workflow_leaves_no_job(submit: Submit, stop: dict[str, Any]) -> None:
    ran = submit(epochs=100_000)
    assert eventually(lambda: _steps_of(ran), bool, 240), ran.failure()
    ran.place.patch(ran.path, {"spec": stop})
    assert eventually(ran.place.jobs, lambda jobs: not jobs, 30) == []
    assert ran.ended(60) == "Failed"


@pytest.mark.xdist_group("photographs")
def test_photographs_from_the_bucket_train_the_same_way(submit: Submit, root: str) -> None:
    if "DDPIPE_TEST_CIFAR" not in os.environ:
        pytest.skip("no photographs: set DDPIPE_TEST_CIFAR")
    upload_photographs(Path(os.environ["DDPIPE_TEST_CIFAR"]), f"{root}/cifar", per_class=500)
    ran = submit(source="folder", source_path=f"{root}/cifar", dataset_name="cifar", epochs=1)
    assert ran.ended(900) == "Succeeded", ran.failure()
    assert accuracy_of_the_package(ran, ran.step("prepare")["facts"]["dataset"]) == pytest.approx(
        reported_accuracy(ran)
    )


@pytest.mark.xdist_group("xrays")
def test_xrays_with_several_labels_each_train_the_same_way(submit: Submit, root: str, tmp_path: Path) -> None:
    upload_xrays(tmp_path, f"{root}/xrays")
    ran = submit(
        source="csv",
        source_path=f"{root}/xrays",
        **KAGGLE,
        dataset_name="xrays",
        batch_size=16,
        epochs=10,
        learning_rate=0.1,
    )
    assert ran.ended() == "Succeeded", ran.failure()
    assert ran.step("train")["facts"]["nodes"] == 2
    scores = json.loads(read_uri(f"{ran.folder}/evaluation/metrics.json"))["scores"]
    assert scores["macro_auc"]["value"] > 0.7, "0.5 is chance"


@pytest.mark.xdist_group("claim")
def test_without_an_object_store_all_data_is_on_a_claim(place: Place, tmp_path: Path) -> None:
    compile_v1(tmp_path, "photos")
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    place.create("/api/v1/persistentvolumeclaims", {"metadata": {"name": "photos"}, "spec": wanted})
    _let_everybody_write(place, "photos")
    workflow = workflow_of(SMALL, tmp_path / "ddpipe-training-minikf.yaml")
    made = place.admin.create(workflows_of(place), workflow)
    ran = Ran(place, made["metadata"]["name"], "/data/ddpipe/runs")
    assert ran.ended() == "Succeeded", ran.failure()


def _let_everybody_write(place: Place, claim: str) -> None:
    """fsGroup does not reach volumes that are folders of the node."""
    path = f"/api/v1/namespaces/{place.namespace}/persistentvolumeclaims/{claim}"
    name = eventually(lambda: place.admin.get(path)["spec"].get("volumeName"), bool, 60)
    volume = place.admin.get(f"/api/v1/persistentvolumes/{name}")["spec"]
    folder = Path(volume.get("hostPath", {}).get("path", "/nowhere"))
    if folder.is_dir():
        folder.chmod(0o777)


def _steps_of(ran: Ran) -> bool:
    """Whether training has written something."""
    try:
        return any(True for _ in open_store(f"{ran.folder}/training").list())
    except DdpipeError:
        return False
