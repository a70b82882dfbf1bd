"""Puts a model behind a service on a cluster, and follows it until its pods answer.

look at what is there ─▶ create or replace ─▶ follow ─▶ ready ─▶ send a test pattern ─▶ same answer
                                                └─▶ failed or too late       └─▶ another answer
                                                      └─▶ restore what was there, say why ◀─┘

The pods run `ddpipe serve` on the package itself, whose files are verified as they are read; credentials come
from a secret, by its name only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ddpipe.errors import DeployFailed, LaunchError, ParameterError
from ddpipe.jobs.options import s3_environment
from ddpipe.kube.cluster import ApiError, Cluster, Refused, is_served, readable
from ddpipe.kube.resources import PODS, SERVICES, Resource
from ddpipe.kube.retrying import answered, delete
from ddpipe.model.history import version_at
from ddpipe.model.package import FORMAT
from ddpipe.serve.rollout import CONTAINER, DEPLOYMENTS, ProbeResult, RolloutState, look, probe, ready_pod
from ddpipe.serve.settings import DeployOptions
from ddpipe.storage import open_store

INFERENCE_SERVICES = Resource(
    group="serving.kserve.io", version="v1beta1", plural="inferenceservices", kind="InferenceService"
)

APP = "app.kubernetes.io/name"
MANAGER = "app.kubernetes.io/managed-by"
MODEL = "ddpipe.io/model"  # annotation with the URI of the package
PORT = 8080  # of the pods; their Service listens at 80
USER = 1000

PAUSE = 1.0  # seconds between two looks at the pods
# Seconds for which a state must last that does not pass by itself: a node may not know a secret at first.
LASTING = 10.0
REPLACEMENTS = 5  # attempts to replace an object whose status changes meanwhile
DEADLINE = 600.0  # seconds until the pods must be ready, before the previous model is restored
OUTAGE = 120.0  # seconds that the API server may be away
TEST = 30.0  # seconds for which the test request is tried again

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model that is served, the previous one, and whether it answers a test pattern, as a clause."""

    service: str
    kind: str
    url: str
    model: str
    previous: str
    tested: str


def deploy(
    options: DeployOptions,
    model: str,
    cluster: Cluster,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Deployed:
    """Serve a model, and wait until every pod answers with it."""
    _check(model)
    patient, which = cluster.patient(OUTAGE), f"{cluster.namespace}/{options.service}"
    return answered(lambda: _deploy(options, model, patient, pause, clock), which)


def _check(model: str) -> None:
    seen = ""
    if "://" not in model:
        seen = "pods cannot read a folder of this machine"
    elif not open_store(model).exists(FORMAT.seal):
        seen = f"there is no {FORMAT.seal}, which is written last"
    if seen:
        raise ParameterError(
            what="the model cannot be deployed",
            which=model,
            seen=seen,
            do="Give s3://bucket/prefix of a finished package, or NAME@champion with a store in a bucket.",
        )


def _deploy(
    options: DeployOptions,
    model: str,
    cluster: Cluster,
    pause: Callable[[float], object],
    clock: Callable[[], float],
) -> Deployed:
    namespace = cluster.namespace
    kserve = options.kserve == "yes" or (options.kserve == "auto" and is_served(cluster, INFERENCE_SERVICES))
    main, *others = objects(options, model, namespace, kserve=kserve)
    name = main.body["metadata"]["name"]
    path = main.resource.path(namespace, name)
    before = readable(lambda: cluster.get(path))
    previous = (before or {}).get("metadata", {}).get("annotations", {}).get(MODEL, "")
    made = _put(cluster, main, before)
    for other in others:  # the same for every model
        if readable(lambda: cluster.get(other.resource.path(namespace, name))) is None:  # noqa: B023 - called at once
            cluster.create(other.resource.path(namespace), other.body)

    def undone(what: str, seen: str, do: str) -> DeployFailed:
        restored = _restore(cluster, main, before, made, previous)
        which = f"{main.resource.kind} {namespace}/{name}, {model}"
        return DeployFailed(what=what, which=which, seen=seen, do=f"{restored} {do}")

    state, is_lost = _followed(lambda: look(cluster, made, kserve=kserve), options.service, pause, clock)
    if not state.ready:
        raise undone(
            "the model did not become ready",
            state.seen if is_lost else f"after {DEADLINE:g} s: {state.seen}",
            "Remove the cause, then deploy again.",
        )
    tested = _tested(cluster.patient(TEST), options, model, made, kserve=kserve)
    if tested.same is False:
        raise undone(
            "the model answers differently from what was exported",
            tested.seen,
            "Check that the image of the server is the one of this version of ddpipe.",
        )
    if tested.same is None:
        _log.warning("%s was not tested: %s", options.service, tested.seen)
    if version := version_at(model):
        version[0].note_service(f"{namespace}.{options.service}", version[1])
    host = f"{options.service}-predictor" if kserve else options.service
    url = f"http://{host}.{namespace}.svc/v2/models/{options.service}/infer"
    return Deployed(options.service, main.resource.kind, url, model, previous, tested.seen)


def _tested(
    cluster: Cluster, options: DeployOptions, model: str, made: Mapping[str, Any], *, kserve: bool
) -> ProbeResult:
    """The test request; to a pod of a Deployment, as its Service may still choose an old one."""
    if kserve:
        target = SERVICES.path(cluster.namespace, f"{options.service}-predictor:80")
        return probe(cluster, target, options.service, model)
    try:
        pod = ready_pod(cluster, made)
    except (ApiError, LaunchError) as error:
        return ProbeResult(None, f"its pods could not be listed: {error}")
    if not pod:
        return ProbeResult(None, "none of its new pods is ready any more")
    return probe(cluster, PODS.path(cluster.namespace, f"{pod}:{PORT}"), options.service, model)


def _followed(
    look: Callable[[], RolloutState],
    service: str,
    pause: Callable[[float], object],
    clock: Callable[[], float],
) -> tuple[RolloutState, bool]:
    """The last state of a rollout, and whether it does not pass by itself."""
    until, state = clock() + DEADLINE, RolloutState(ready=False, seen="nothing yet")
    since: float | None = None
    while not state.ready and clock() < until:
        pause(PAUSE)
        found = look()
        if found.seen != state.seen:
            _log.info("%s: %s", service, found.seen)
        state = found
        since = (clock() if since is None else since) if state.hopeless else None
        if since is not None and clock() - since >= LASTING:
            return state, True
    return state, False


def _put(cluster: Cluster, item: ServingObject, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Create the object, or replace the one that was seen, unless somebody else has changed it since."""
    namespace, name = item.body["metadata"]["namespace"], item.body["metadata"]["name"]
    if before is None:
        return cluster.create(item.resource.path(namespace), item.body)
    path = item.resource.path(namespace, name)

    def instead_of(seen: Mapping[str, Any]) -> dict[str, Any]:
        version = {"resourceVersion": seen["metadata"]["resourceVersion"]}  # and no later one
        return {**item.body, "metadata": {**item.body["metadata"], **version}}

    for _ in range(REPLACEMENTS):
        try:
            return cluster.replace(path, instead_of(before))
        except Refused as error:
            now = readable(lambda: cluster.get(path))
            # The object's controller writes its status all the time; only another spec is somebody's wish.
            if error.status != HTTPStatus.CONFLICT or now is None or now["spec"] != before["spec"]:
                raise
            before = now
    return cluster.replace(path, instead_of(before))


def _restore(
    cluster: Cluster,
    main: ServingObject,
    before: Mapping[str, Any] | None,
    made: Mapping[str, Any],
    previous: str,
) -> str:
    """Put back what was there, or remove what was made; what became of it, in a sentence."""
    metadata = main.body["metadata"]
    path = main.resource.path(metadata["namespace"], metadata["name"])
    now = readable(lambda: cluster.get(path))
    if now is None or now["metadata"]["uid"] != made["metadata"]["uid"]:
        return "Somebody else has removed or replaced it meanwhile."
    if before is None:
        delete(cluster, path, made["metadata"]["uid"])
        return "There was no model before: it is removed."
    if now["spec"] != made["spec"]:
        return "Somebody else has changed it meanwhile: it is left as it is."
    kept = {key: before["metadata"].get(key, {}) for key in ("labels", "annotations")}
    body = {**main.body, "metadata": {**metadata, **kept}, "spec": before["spec"]}
    _put(cluster, ServingObject(main.resource, body), now)
    return f"The previous model serves: {previous or 'it has no name'}."


@dataclass(frozen=True, slots=True)
class ServingObject:
    """An object of the cluster, and where it belongs."""

    resource: Resource
    body: Mapping[str, Any]


def objects(options: DeployOptions, model: str, namespace: str, *, kserve: bool) -> tuple[ServingObject, ...]:
    """Everything that serves a model; the one whose rollout is followed comes first."""
    labels = {APP: options.service, MANAGER: "ddpipe"}
    about = {"labels": labels, "annotations": {MODEL: model}}
    metadata = {"name": options.service, "namespace": namespace, **about}
    pod = _pod(options, model)
    if kserve:
        predictor = {**pod, "minReplicas": options.replicas, "maxReplicas": options.replicas}
        return (_object(INFERENCE_SERVICES, metadata, {"predictor": predictor}),)
    template = {"metadata": about, "spec": pod}
    deployment = {
        "replicas": options.replicas,
        "selector": {"matchLabels": {APP: options.service}},
        "template": template,
        # The old pods answer until the new ones do.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    ports = [{"name": "http", "port": 80, "targetPort": PORT}]
    service = {"selector": {APP: options.service}, "ports": ports}
    return _object(DEPLOYMENTS, metadata, deployment), _object(SERVICES, metadata, service)


def _object(resource: Resource, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> ServingObject:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return ServingObject(resource, body)


def _pod(options: DeployOptions, model: str) -> dict[str, Any]:
    resources = {"cpu": options.serve_cpu, "memory": options.serve_memory}
    arguments = ["serve", model, "--host", "0.0.0.0", "--port", str(PORT), "--name", options.service]  # noqa: S104 - of the pod
    ready = {"path": "/v2/health/ready", "port": PORT}
    container = {
        "name": CONTAINER,
        "image": options.serve_image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": s3_environment(options.s3_secret, options.s3_endpoint),
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": ready, "periodSeconds": 2, "timeoutSeconds": 5},
        "livenessProbe": {
            "httpGet": {**ready, "path": "/v2/health/live"},
            "initialDelaySeconds": 60,  # the package is read and tried first
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - of the pod
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "containers": [container],
        # What the container's libraries write at their start; the package stays in memory.
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 30,
    }
