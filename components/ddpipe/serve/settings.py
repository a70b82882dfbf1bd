"""The parameters of predicting, serving, deploying and registering; importable without numpy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.parameters import Between, OneOf, Parameters, parameter

MOST_CLASSES = 10_000

# KServe appends to it, and the whole is at most 63 characters.
_SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(Parameters):
    """Which package a step uses, and where its name is looked up."""

    what: ClassVar[str] = "there is no model"
    heading: ClassVar[str] = "Model"

    model: str = parameter(
        None,
        "Model package: a folder or s3:// URI, the name of a run, or NAME@champion or NAME@VERSION of the "
        "store.",
        common=True,
    )
    runs: str = parameter("runs", "URI of the folder that holds all runs.", form="storage_runs")
    store: str = parameter("store", "URI of the store with the versions of models.", form="storage_datasets")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(Parameters):
    """What is predicted, and where the results go."""

    what: ClassVar[str] = "nothing can be predicted"
    heading: ClassVar[str] = "Predictions"

    images: Sequence[str] = parameter([], "Image files, folders, CSV files of paths, or s3:// URIs of these.")
    table: str = parameter(
        "",
        "Folder for a table of all predictions and a page, a path or s3:// URI (default: print them).",
        common=True,
    )
    top: int = parameter(
        0,
        "Print the N most probable classes; 0 prints the answer: the most probable class, or all labels that "
        "reach their thresholds.",
        Between(0, MOST_CLASSES),
        common=True,
    )
    image_column: str = parameter(
        "", "Column of CSV files with the path of the image (default: the first column)."
    )
    most_unreadable: float = parameter(
        0.0, "Fraction of images that may be unreadable before the step fails.", Between(0, 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(Parameters):
    """Where and how a model is served."""

    what: ClassVar[str] = "the model cannot be served"
    heading: ClassVar[str] = "Server"

    host: str = parameter("127.0.0.1", "Address to listen on; 0.0.0.0 for all of this machine.", common=True)
    port: int = parameter(8080, "Port to listen on; 0 takes any free one.", Between(0, 65535), common=True)
    name: str = parameter("model", "Name of the model in the paths of requests.", common=True)
    queue: int = parameter(
        32, "Requests in progress or waiting; further ones are rejected with status 503.", Between(1, 10_000)
    )


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
    s3_endpoint: str = parameter(
        "", "Object store as host:port, as seen from the cluster.", form="storage_endpoint"
    )
    s3_secret: str = parameter(
        "", "Secret with the object store's accesskey and secretkey, if any.", form="storage_secret"
    )
    kserve: str = parameter(
        "auto", "Whether to use KServe; auto: where it is installed.", OneOf(("auto", "yes", "no"))
    )

    def conflicts(self) -> Iterator[str]:
        """A name that no service can have."""
        if self.service and not _SERVICE.fullmatch(self.service):
            yield (
                f"`service` is {self.service!r}, not a name of at most 40 lower-case letters, "
                "digits and '-' that starts with a letter"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterOptions(Parameters):
    """Where a version is registered."""

    what: ClassVar[str] = "the model cannot be registered"
    heading: ClassVar[str] = "Registry"

    registry: str = parameter(
        None,
        "URL of a Kubeflow Model Registry, such as http://model-registry-service.kubeflow:8080.",
        form="register_url",
    )

    def conflicts(self) -> Iterator[str]:
        """What is not the address of a server."""
        if self.registry and not self.registry.startswith(("http://", "https://")):
            yield f"`registry` is {self.registry!r}, not an http:// or https:// URL"
