"""What serves a model on a cluster: a KServe InferenceService, or a Deployment and a Service. Pure functions.

The pods run `ddpipe serve` on the package itself, whose files are verified as they are read; credentials come
from a secret, by its name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ddpipe.jobs.options import NO_SECRET, S3Access
from ddpipe.kube.resources import SERVICES, Resource
from ddpipe.parameters import Between, OneOf, Parameters, parameter
from ddpipe.spelling import option

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

_SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
"""KServe appends to it, and the whole is at most 63 characters."""

USER = 1000
CONTAINER = "kserve-container"
"""The name that KServe expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions(Parameters):
    """How a model is deployed."""

    what: ClassVar[str] = "the model cannot be deployed"
    heading: ClassVar[str] = "Deployment"
    others: ClassVar[str] = "deploy_options"

    service: str = parameter(
        None, "Name of the service that gets the model, such as photos.", form="deploy_service"
    )
    serve_image: str = parameter(
        "ghcr.io/ddpipe/ddpipe-predictor:0.1.0", "Image that serves, without torch.", form="deploy_image"
    )
    replicas: int = parameter(1, "Number of pods that serve.", Between(1, 1000), common=True)
    serve_cpu: str = parameter("1", "CPUs per pod, requested and limited.")
    serve_memory: str = parameter("1Gi", "Memory per pod, requested and limited.")
    serve_queue: int = parameter(
        32,
        "Requests in progress or waiting in a pod; further ones are rejected with status 503.",
        Between(1, 10_000),
    )
    s3_endpoint: str = parameter(
        "", "Object store as host:port, as seen from the cluster.", form="storage_endpoint"
    )
    s3_secret: str = parameter(
        "", "Secret with the object store's accesskey and secretkey, if any.", form="storage_secret"
    )
    kserve: str = parameter(
        "auto",
        "Whether to use KServe; auto: where it is installed.",
        OneOf(("auto", "yes", "no")),
    )
    deadline: float = parameter(
        600.0, "Seconds until the pods must be ready, before the previous model is restored.", Between(1, 1e5)
    )

    def conflicts(self) -> Iterator[str]:
        """A name that no service can have."""
        if self.service and not _SERVICE.fullmatch(self.service):
            yield (
                f"{option('service')} is {self.service!r}, not a name of at most 40 lower-case letters, "
                "digits and '-' that starts with a letter"
            )


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the cluster, and where it belongs."""

    resource: Resource
    body: Mapping[str, Any]


def objects(options: DeployOptions, model: str, namespace: str, *, kserve: bool) -> tuple[Object, ...]:
    """Everything that serves a model; the one whose rollout is followed comes first."""
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
    resources = {"cpu": options.serve_cpu, "memory": options.serve_memory}
    arguments = ["serve", model, "--host", "0.0.0.0", "--port", str(PORT), "--name", options.service]  # noqa: S104 - of the pod
    ready = {"path": "/v2/health/ready", "port": PORT}
    secret = "" if options.s3_secret == NO_SECRET else options.s3_secret
    container = {
        "name": CONTAINER,
        "image": options.serve_image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments, "--queue", str(options.serve_queue)],
        "env": S3Access(secret=secret, endpoint=options.s3_endpoint).environment(),
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
