"""The package for KFP 1.x as a workflow of a real Argo, from our own images, with MinIO.

S3_ENDPOINT        the cluster's MinIO as this machine reaches it (pods: minio-service.kubeflow:9000)
DDPIPE_TEST_IMAGES our images, {} for launcher and trainer; default: ddpipe-{}:dev
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import yaml
from place import ACCOUNT, OUR_IMAGES, Place, eventually

from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.errors import DdpipeError
from ddpipe.pipelines.compile import COMPILED
from ddpipe.pipelines.training import TRAINING
from ddpipe.pipelines.wiring import Pipeline
from ddpipe.storage import open_store, read_uri

WORKFLOW = COMPILED / "ddpipe-training-minikf.yaml"
OURS = r"[\w./:-]+/ddpipe-(launcher|predictor|trainer):[\w.]+"
ENDED = {"Succeeded", "Failed", "Error"}
SMALL = {
    "nodes": 2,
    "cpu": "150m",
    # Without a limit: workflows beside each other share the processors that are idle.
    "patch": {"spec": {"containers": [{"name": "pytorch", "resources": {"limits": {"cpu": None}}}]}},
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
        """The phase at its end; a workflow is too large an object to be read ten times a second."""
        return eventually(lambda: self.phase, lambda phase: phase in ENDED, seconds, pause=1)

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

        found = eventually(find, bool)
        assert found, self.failure()
        return found[0]


Submit = Callable[..., Ran]


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


def accuracy_of_the_package(ran: Ran, dataset: str) -> float:
    """What onnxruntime says about the test split with the exported model."""
    manifest = load_manifest(dataset)
    test = open_split((manifest, store_of(dataset)), "test")
    session = onnxruntime.InferenceSession(read_uri(f"{ran.folder}/model/model.onnx"))
    (logits,) = session.run(None, {session.get_inputs()[0].name: test.images(range(len(test)))})
    return float(np.mean(np.argmax(logits, axis=1) == test.labels))


def reported_accuracy(ran: Ran) -> float:
    return float(json.loads(read_uri(f"{ran.folder}/evaluation/metrics.json"))["scores"]["accuracy"]["value"])


def has_trained(ran: Ran) -> bool:
    """Whether training has written something."""
    try:
        return any(True for _ in open_store(f"{ran.folder}/training").list())
    except DdpipeError:
        return False
