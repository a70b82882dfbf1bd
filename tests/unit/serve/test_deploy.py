"""Deploying: the pods of the new model decide; what was there before comes back if they never answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_api import FakeApiServer
from onnx_packages import a_small_package
from s3_server import BUCKET

from ddpipe.errors import DeployFailed, ModelError, NoAccess, ParameterError, PodRefused
from ddpipe.kube.cluster import Refused, Unanswered
from ddpipe.kube.resources import PODS, SERVICES
from ddpipe.model.history import NamedModel
from ddpipe.model.package import load_package
from ddpipe.serve import deploy as deploying
from ddpipe.serve.deploy import INFERENCE_SERVICES, Deployed, deploy, objects
from ddpipe.serve.predictor import load_model
from ddpipe.serve.protocol import parsed, response
from ddpipe.serve.rollout import CONTAINER, DEPLOYMENTS
from ddpipe.serve.settings import DeployOptions
from ddpipe.storage import open_store
from ddpipe.storage.s3 import S3Store

OPTIONS = DeployOptions(service="photos", s3_secret="keys", s3_endpoint="minio:9000")  # noqa: S106 - its name
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture(autouse=True)
def deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying, "DEADLINE", 30.0)


@pytest.fixture
def packages(s3: object) -> list[str]:
    """Two versions of a model, in a bucket."""
    return [
        a_small_package(f"s3://{BUCKET}/models/{seed}", seed=seed, has_pattern=True).folder.store.uri
        for seed in range(2)
    ]


class Controllers:
    """Stands for the cluster: makes a Deployment of an InferenceService, and pods in some state."""

    def __init__(self, *, kserve: bool = False, state: dict[str, Any] = READY, looks: int = 2) -> None:
        self.cluster, self.state, self.looks, self.kserve = FakeApiServer(), state, looks, kserve
        self.cluster.serve(DEPLOYMENTS, SERVICES, PODS, *([INFERENCE_SERVICES] if kserve else []))
        self._seconds, self._left, self.without_pods = itertools.count(), looks, False
        self.answering, self._create = self._answer, self.cluster.create
        self.cluster.create = self._created  # type: ignore[method-assign]

    def deploy(self, model: str, options: DeployOptions = OPTIONS) -> Deployed:
        self._left = self.looks
        return deploy(options, model, self.cluster, self._pause, lambda: float(next(self._seconds)))

    def serving(self) -> str:
        """URI of the model that the object names."""
        resource = INFERENCE_SERVICES if self.kserve else DEPLOYMENTS
        spec = self.cluster.get(resource.path("team", "photos"))["spec"]
        pod = spec["predictor"] if self.kserve else spec["template"]["spec"]
        return str(pod["containers"][0]["args"][1])

    def _created(self, path: str, body: Any, query: Any = None) -> dict[str, Any]:
        return self.answering(path, body) if "/proxy/" in path else self._create(path, body, query)

    def _answer(self, path: str, body: Any) -> dict[str, Any]:
        """What the server in the pod answers, behind the API server's proxy."""
        target, _ = path.removeprefix("/api/v1/namespaces/team/").split("/proxy/")
        kind, name = target.split(":")[0].split("/")
        pods = {pod["metadata"]["name"]: pod for pod in self.cluster.get(PODS.path("team"))["items"]}
        # A Service may choose any pod, in the worst case that of another model.
        pod = pods[name if kind == "pods" else min(pods)]
        model = load_model(pod["spec"]["containers"][0]["args"][1], 1)
        request = parsed(json.dumps(body).encode(), model.signature)
        return dict(response(request, model.predict(list(request.images)), model.signature, "photos"))

    def _pause(self, _seconds: float) -> None:
        """The controllers work while the command waits."""
        for made in self.cluster.get(DEPLOYMENTS.path("team"))["items"]:
            made["metadata"].setdefault("generation", 1)
            self.cluster.put(DEPLOYMENTS.path("team"), made)
        self._left -= 1
        if self._left > 0:
            return
        if self.kserve:
            found = self.cluster.get(INFERENCE_SERVICES.path("team", "photos"))
            self.cluster.put(DEPLOYMENTS.path("team"), _made_by_kserve(found))
        name = "photos-predictor" if self.kserve else "photos"
        for made in self.cluster.get(DEPLOYMENTS.path("team"))["items"]:
            if made["metadata"]["name"] == name:
                self._work(made)

    def _work(self, made: dict[str, Any]) -> None:
        """Pods of a Deployment, in the state."""
        count = made["spec"]["replicas"]
        made["status"] = {
            "observedGeneration": made["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "availableReplicas": count if self.state == READY else 0,
        }
        self.cluster.put(DEPLOYMENTS.path("team"), made)
        labels = {"app": "isvc.photos-predictor"} if self.kserve else made["spec"]["selector"]["matchLabels"]
        if self.without_pods:
            for old in self.cluster.get(PODS.path("team"))["items"]:
                self.cluster.drop(PODS.path("team", old["metadata"]["name"]))
            return
        metadata = {"name": f"{made['metadata']['name']}-one", "labels": labels}
        pod = {"metadata": metadata, "spec": made["spec"]["template"]["spec"]}
        self.cluster.put(PODS.path("team"), {**pod, "status": self.state})


def _made_by_kserve(found: dict[str, Any]) -> dict[str, Any]:
    spec = {"replicas": 1, "template": {"spec": found["spec"]["predictor"]}}
    return {"metadata": {"name": "photos-predictor", "generation": 1}, "spec": spec}


def _waiting(reason: str, **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "the registry says no"}}
    return {"containerStatuses": [{"name": CONTAINER, "state": state, **more}]}


CRASHED = _waiting(
    "CrashLoopBackOff",
    restartCount=2,
    lastState={"terminated": {"exitCode": 24, "reason": "Error", "message": "model.onnx was changed"}},
)


def test_a_model_that_a_service_has_is_not_removed(
    packages: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NamedModel(open_store(f"s3://{BUCKET}/store"), "photos")
    first, second = (model.publish(load_package(package), {}) for package in packages)
    cluster = Controllers(kserve=False)
    cluster.deploy(first.uri)
    with pytest.raises(ModelError, match=r"it was deployed: services/team\.photos"):
        model.remove(first)
    cluster.deploy(second.uri)
    model.remove(first)
    assert [one.version for one in model.versions()] == [second.version]
    refused = NoAccess(what="", which="", seen="read only", do="")
    monkeypatch.setattr(S3Store, "write", lambda *_: (_ for _ in ()).throw(refused))
    cluster.deploy(second.uri)
    assert "it is not noted that team.photos has" in caplog.text


@pytest.mark.parametrize("kserve", [False, True])
def test_service_answers_with_the_new_model_when_its_pods_do(packages: list[str], kserve: bool) -> None:
    cluster = Controllers(kserve=kserve)
    first, second = (cluster.deploy(package) for package in packages)
    assert (first.previous, second.previous) == ("", packages[0])
    assert first.kind == ("InferenceService" if kserve else "Deployment")
    host = "photos-predictor" if kserve else "photos"
    assert "it answers the test pattern as exported, within" in second.tested
    assert second.url == f"http://{host}.team.svc/v2/models/photos/infer"
    assert cluster.serving() == packages[1]


@pytest.mark.parametrize("kserve", [False, True])
@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (_waiting("ImagePullBackOff"), "ImagePullBackOff: the registry says no"),
        (CRASHED, "its container ended with code 24: Error: model.onnx was changed"),
        ({"conditions": []}, "after 30 s: 0 of 1 new pods are ready"),
    ],
    ids=["image", "crash", "deadline"],
)
def test_previous_model_is_restored_and_the_cause_named(
    packages: list[str], kserve: bool, state: dict[str, Any], seen: str
) -> None:
    cluster = Controllers(kserve=kserve)
    cluster.deploy(packages[0])
    cluster.state = state
    with pytest.raises(DeployFailed) as failed:
        cluster.deploy(packages[1])
    assert seen in str(failed.value)
    assert f"The previous model serves: {packages[0]}" in str(failed.value)
    assert cluster.serving() == packages[0]


def test_secret_that_a_node_does_not_know_at_first_is_waited_for(packages: list[str]) -> None:
    """The kubelet says CreateContainerConfigError, too, while it fetches a secret that exists."""
    cluster = Controllers(state=_waiting("CreateContainerConfigError"))
    looks = itertools.count()

    def later(seconds: float) -> None:
        if next(looks) == 4:
            cluster.state = READY
        Controllers._pause(cluster, seconds)

    cluster._pause = later  # type: ignore[method-assign]
    assert cluster.deploy(packages[0]).model == packages[0]


def test_status_that_changes_meanwhile_does_not_reject_the_model(packages: list[str]) -> None:
    """KServe's controller writes it at any time, and each time the object has another version."""
    controllers = Controllers()
    controllers.deploy(packages[0])
    cluster, times = controllers.cluster, itertools.count()
    replace_now = cluster.replace

    def racing(path: str, body: Any) -> dict[str, Any]:
        if (time := next(times)) < 2:
            cluster.put(DEPLOYMENTS.path("team"), {**cluster.get(path), "status": {"replicas": time}})
        return replace_now(path, body)

    cluster.replace = racing  # type: ignore[method-assign]
    assert controllers.deploy(packages[1]).previous == packages[0]


def test_first_model_that_fails_leaves_nothing(packages: list[str]) -> None:
    cluster = Controllers(kserve=True, state=CRASHED)
    with pytest.raises(DeployFailed, match="There was no model before: it is removed"):
        cluster.deploy(packages[0])
    assert cluster.cluster.get(INFERENCE_SERVICES.path("team"))["items"] == []


def test_status_of_a_service_that_still_runs_the_old_pods_is_no_success(packages: list[str]) -> None:
    """KServe says Ready all through a rollout: the previous pods answer."""
    cluster = Controllers(kserve=True)
    cluster.deploy(packages[0])
    cluster.looks = 10**6  # the controller does not react to the new model
    with pytest.raises(DeployFailed, match="has not made its pods yet"):
        cluster.deploy(packages[1])


def test_change_by_somebody_else_is_not_overwritten(packages: list[str]) -> None:
    def meanwhile(controllers: Controllers, pause: Callable[[float], None]) -> Callable[[float], None]:
        def paused(seconds: float) -> None:
            pause(seconds)
            path = DEPLOYMENTS.path("team", "photos")
            found = controllers.cluster.get(path)
            changed = {**found, "spec": {**found["spec"], "replicas": 7}}
            controllers.cluster.put(DEPLOYMENTS.path("team"), changed)

        return paused

    good = Controllers()
    good.deploy(packages[0])
    good.state, good._pause = CRASHED, meanwhile(good, good._pause)  # type: ignore[method-assign]
    with pytest.raises(DeployFailed, match="Somebody else has changed it meanwhile"):
        good.deploy(packages[1])
    assert good.cluster.get(DEPLOYMENTS.path("team", "photos"))["spec"]["replicas"] == 7


def test_two_deployments_at_once_do_not_overwrite_each_other(packages: list[str]) -> None:
    cluster = Controllers()
    cluster.deploy(packages[0])
    original = cluster.cluster.replace

    def late(path: str, body: Any) -> dict[str, Any]:
        found = cluster.cluster.get(path)
        cluster.cluster.put(DEPLOYMENTS.path("team"), {**found, "spec": {**found["spec"], "replicas": 2}})
        return original(path, body)

    cluster.cluster.replace = late  # type: ignore[method-assign]
    with pytest.raises(PodRefused, match="has been modified"):
        cluster.deploy(packages[1])


@pytest.mark.parametrize(
    ("model", "seen"),
    [("runs/first/model", "pods cannot read a folder"), ("s3://{}/nothing", "there is no package.json")],
)
def test_model_that_pods_cannot_read_is_rejected_before_anything_is_made(
    packages: list[str], model: str, seen: str
) -> None:
    bucket = open_store(packages[0]).uri.split("/")[2]
    cluster = Controllers()
    with pytest.raises(ParameterError, match=seen):
        cluster.deploy(model.format(bucket))
    assert not cluster.cluster.asked


def test_pods_are_restricted_and_name_their_secret_only() -> None:
    for kserve in (False, True):
        main, *_ = objects(OPTIONS, "s3://b/m", "team", kserve=kserve)
        pod = main.body["spec"]["predictor"] if kserve else main.body["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]  # noqa: S108 - of the pod
        names = {entry["name"]: entry for entry in container["env"]}
        assert names["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "keys"
        assert "value" not in names["AWS_SECRET_ACCESS_KEY"]
    without = objects(replace(OPTIONS, s3_secret=""), "s3://b/m", "team", kserve=False)[0]
    assert "secretKeyRef" not in str(without.body)


@pytest.mark.parametrize("kserve", [False, True])
def test_a_model_that_answers_differently_is_rolled_back(packages: list[str], kserve: bool) -> None:
    """The pods are ready, and compute something else: another file, another library, another processor."""
    cluster = Controllers(kserve=kserve)
    cluster.deploy(packages[0])
    right = cluster.answering

    def shifted(path: str, body: Any) -> dict[str, Any]:
        answer = right(path, body)
        answer["outputs"][0]["data"] = answer["outputs"][0]["data"][::-1]
        return answer

    cluster.answering = shifted
    with pytest.raises(DeployFailed, match="for the test pattern it gives") as failed:
        cluster.deploy(packages[1])
    assert f"The previous model serves: {packages[0]}" in str(failed.value)
    assert cluster.serving() == packages[0]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (Refused(400, "", "Bad Request"), "the test request was refused: HTTP 400"),
        (None, "its answer has no probabilities"),
    ],
)
def test_a_server_that_rejects_the_test_image_is_rolled_back(
    packages: list[str], error: Exception | None, seen: str
) -> None:
    cluster = Controllers()

    def answering(_path: str, _body: Any) -> dict[str, Any]:
        if error:
            raise error
        return {"outputs": [{"name": "probabilities", "data": ["high"]}]}

    cluster.answering = answering
    with pytest.raises(DeployFailed) as failed:
        cluster.deploy(packages[0])
    assert seen in str(failed.value)
    assert "There was no model before: it is removed" in str(failed.value)


@pytest.mark.parametrize(
    "error",
    [
        Refused(403, "Forbidden", "services/proxy is forbidden"),
        Refused(400, "BadRequest", "cannot proxy to a Service of type ExternalName"),
        Refused(503, "ServiceUnavailable", "no endpoints available"),
        Unanswered("no answer in time"),
    ],
    ids=["rights", "proxy", "endpoints", "silence"],
)
def test_a_way_that_is_closed_does_not_remove_a_model(
    packages: list[str], error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pods are ready; that the API server cannot reach them says nothing about the model."""
    monkeypatch.setattr(deploying, "TEST", 0.0)
    cluster = Controllers()

    def answering(_path: str, _body: Any) -> dict[str, Any]:
        raise error

    cluster.answering = answering
    assert cluster.deploy(packages[0]).tested.startswith("the test request was")
    assert "photos was not tested" in caplog.text


def test_an_older_package_is_deployed_without_a_test(s3: object) -> None:
    package = a_small_package(f"s3://{BUCKET}/models/old").folder.store.uri
    assert "export it again" in Controllers().deploy(package).tested


@pytest.mark.parametrize("leftover", ["ending", "of another model"])
def test_a_leftover_pod_is_not_asked(packages: list[str], leftover: str) -> None:
    """It answers, and it is listed first."""
    cluster = Controllers()
    cluster.deploy(packages[0])
    old = cluster.cluster.get(PODS.path("team", "photos-one"))
    if leftover == "ending":
        old["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    else:
        old["spec"]["containers"][0]["args"][1] = "s3://models/another"
    cluster.cluster.drop(PODS.path("team", old["metadata"]["name"]))
    cluster.cluster.put(PODS.path("team"), {**old, "metadata": {**old["metadata"], "name": "a-leftover"}})
    asked, answering = [], cluster.answering

    def noted(path: str, body: Any) -> dict[str, Any]:
        asked.append(path)
        return answering(path, body)

    cluster.answering = noted
    cluster.deploy(packages[0])
    assert [path.split("/")[6] for path in asked] == ["photos-one:8080"]


def test_a_model_without_a_ready_pod_is_not_tested(packages: list[str]) -> None:
    """A pod may end between the last look and the test."""
    cluster = Controllers()
    cluster.deploy(packages[0])
    cluster.without_pods = True
    assert cluster.deploy(packages[1]).tested == "none of its new pods is ready any more"


def test_pods_that_cannot_be_listed_do_not_remove_a_model(packages: list[str]) -> None:
    cluster = Controllers()
    refused = Refused(403, "Forbidden", "pods is forbidden")
    cluster.cluster.fail(lambda request: request.path == PODS.path("team"), refused)
    assert cluster.deploy(packages[0]).tested.startswith("its pods could not be listed")
