"""What serves a model on a cluster: a KServe InferenceService, or a Deployment and a Service. Pure functions.

The pods run `ddpipe serve` on the package itself, whose files are verified as they are read; credentials come
from a secret, by its name only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ddpipe.jobs.options import S3Access
from ddpipe.kube.resources import SERVICES, Resource
from ddpipe.parameters import Between, OneOf, Parameters, parameter

INFERENCE_SERVICES = Resource(
    group="serving.kserve.io", version="v1beta1", plural="inferenceservices", kind="InferenceService"
)
DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments", kind="Deployment")

APP = "app.kubernetes.io/name"
MANAGER = "app.kubernetes.io/managed-by"
MODEL = "ddpipe.io/model"
"""Annotation with the URI of the package."""

PORT = 8080
"""Of the pods; their Service listens at 80."""

USER = 1000
CONTAINER = "kserve-container"
"""The name that KServe expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions(Parameters):
    """How a model is deployed."""

    what: ClassVar[str] = "the model cannot be deployed"
    heading: ClassVar[str] = "Deployment"

    service: str = parameter(None, "Name of the service; an existing one gets the new model.", common=True)
    image: str = parameter("ghcr.io/ddpipe/ddpipe-predictor:0.1.0", "Image that serves, without torch.")
    replicas: int = parameter(1, "Number of pods.", Between(1, 1000), common=True)
    cpu: str = parameter("1", "CPUs per pod, requested and limited.")
    memory: str = parameter("1Gi", "Memory per pod, requested and limited.")
    queue: int = parameter(
        32, "Requests that may wait in a pod; further ones are rejected with status 503.", Between(1, 10_000)
    )
    s3_endpoint: str = parameter("", "Object store as host:port, as seen from the cluster.")
    s3_secret: str = parameter("", "Secret with the object store's accesskey and secretkey, if any.")
    kserve: str = parameter(
        "auto",
        "Whether to use KServe; auto: where it is installed.",
        OneOf(("auto", "yes", "no")),
    )
    deadline: float = parameter(
        600.0, "Seconds until the pods must be ready, before the previous model is restored.", Between(1, 1e5)
    )


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the cluster, and where it belongs."""

    resource: Resource
    body: Mapping[str, Any]


def objects(options: DeployOptions, model: str, namespace: str, *, kserve: bool) -> tuple[Object, ...]:
    """Everything that serves a model; the one whose rollout is followed comes first.

    Args:
        options: Of the deployment.
        model: URI of the package.
        namespace: Where.
        kserve: Whether KServe makes the pods.
    """
    labels = {APP: options.service, MANAGER: "ddpipe"}
    metadata = {
        "name": options.service,
        "namespace": namespace,
        "labels": labels,
        "annotations": {MODEL: model},
    }
    pod = _pod(options, model)
    if kserve:
        predictor = {**pod, "minReplicas": options.replicas, "maxReplicas": options.replicas}
        return (_object(INFERENCE_SERVICES, metadata, {"predictor": predictor}),)
    template = {"metadata": {"labels": labels, "annotations": {MODEL: model}}, "spec": pod}
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


def _object(resource: Resource, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Object:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return Object(resource, body)


def _pod(options: DeployOptions, model: str) -> dict[str, Any]:
    resources = {"cpu": options.cpu, "memory": options.memory}
    arguments = ["serve", model, "--host", "0.0.0.0", "--port", str(PORT), "--name", options.service]  # noqa: S104 - of the pod
    ready = {"path": "/v2/health/ready", "port": PORT}
    container = {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments, "--queue", str(options.queue)],
        "env": S3Access(secret=options.s3_secret, endpoint=options.s3_endpoint).environment(),
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": ready, "periodSeconds": 2, "timeoutSeconds": 5},
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "containers": [container],
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 30,
    }
