"""What a person can choose about a training job, and what is wrong with a choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar

from ddpipe.jobs import BACKENDS
from ddpipe.kube.capacity import quantity
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter

RUNTIME = "torch-distributed"  # the training runtime that comes with Kubeflow Trainer
# In place of a secret's name: a pipeline's steps cannot refer to a secret without one.
NO_SECRET = "none"  # noqa: S105 - stands for no secret
VOLUME = "KIND:NAME:/PATH[:ro], or for a snapshot KIND:NAME:/PATH:SIZE[:ro]"  # the notation of a volume


class Keep(StrEnum):
    """Which finished jobs stay on the cluster, to be examined."""

    NEVER = "never"
    FAILED = "failed"
    ALWAYS = "always"

    def keeps(self, *, failed: bool) -> bool:
        """Whether a finished job stays."""
        return self is Keep.ALWAYS or (self is Keep.FAILED and failed)


class Restart(StrEnum):
    """When a failed replica is restarted instead of failing the job."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    EXIT_CODE = "ExitCode"


class Preflight(StrEnum):
    """What happens to a job that fails preflight."""

    ENFORCE = "enforce"
    AUTOSCALING = "autoscaling"
    WARN = "warn"


def s3_environment(secret: str, endpoint: str) -> list[dict[str, Any]]:
    """Variables of a container that uses an object store: credentials are keys of a secret, never values."""
    # Without a secret they come from elsewhere, such as the pod's role.
    keys = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}
    named = {} if secret in {"", NO_SECRET} else keys
    return [
        *([{"name": "S3_ENDPOINT", "value": endpoint}] if endpoint else []),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
            for name, key in named.items()
        ),
    ]


class VolumeKind(StrEnum):
    """The source of a volume."""

    CLAIM = "claim"
    SECRET = "secret"  # noqa: S105 - a kind of volume
    CONFIG = "config"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume that is mounted into every replica."""

    kind: VolumeKind
    name: str
    path: str
    read_only: bool = False  # secrets and config maps always are
    size: str = ""  # of a snapshot, of which each pod gets its own copy

    @classmethod
    def parsed(cls, text: str) -> Volume:
        """The volume that `text` names: KIND:NAME:PATH, for a snapshot also :SIZE, with :ro if read-only."""
        parts = text.split(":")
        if read_only := parts[-1] == "ro":
            parts.pop()
        match parts:
            case [VolumeKind.SNAPSHOT, name, path, size] if name and path.startswith("/"):
                with suppress(ValueError):
                    quantity(size)
                    return cls(kind=VolumeKind.SNAPSHOT, name=name, path=path, read_only=read_only, size=size)
            case [kind, name, path] if (
                kind in set(VolumeKind) - {VolumeKind.SNAPSHOT} and name and path.startswith("/")
            ):
                return cls(kind=VolumeKind(kind), name=name, path=path, read_only=read_only)
        raise ValueError(f"{text!r} is not {VOLUME}, where KIND is one of {', '.join(VolumeKind)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that each stage may take; no clock runs while the job is suspended."""

    # Until the operator reacts to the new job. It may write about 20 objects per second, and needs ten for a
    # job of two pods: of 200 jobs that are created together, the last one waits for two minutes.
    reconciled: float = 600
    scheduled: float = 1800  # until every pod has a node
    pulled: float = 1800  # until every image is there
    running: float = 300  # until every container has started
    finished: float | None = None  # until the job ends; None means no limit
    silence: float | None = None  # how long no rank may print a line while all run; None means no limit
    # How long a state must last that cannot pass by itself, such as an image that does not exist; one that
    # may pass must last six times as long.
    hopeless: float = 20
    outage: float = 600  # how long the API server, or a webhook for pods, may be away


STAGES = tuple(stage.name for stage in fields(Deadlines))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(Parameters):
    """What a person chooses about a training job of any kind; requests equal limits."""

    what: ClassVar[str] = "the training job cannot work"
    heading: ClassVar[str] = "Cluster job"
    others: ClassVar[str] = "cluster_options"

    backend: str = parameter(
        AUTO,
        f"Kind of job that runs the pods: {', '.join(BACKENDS)}, or {AUTO} (the first that the cluster has "
        "and the account may use).",
        OneOf((AUTO, *BACKENDS)),
        form="cluster_backend",
    )
    image: str = parameter("", "Container image of the pods.", form="cluster_image")
    nodes: int = parameter(1, "Number of pods.", Between(1, 10_000), form="cluster_nodes")
    min_nodes: int = parameter(
        0,
        "Smallest number of pods to start with, or to continue with after losing some; 0 means all of them.",
        Between(0, 10_000),
    )
    processes: int = parameter(
        0, "Training processes per pod; 0 means one per GPU, or one if there is none.", Between(0, 256)
    )
    cpu: str = parameter("1", "CPUs per pod.", form="cluster_cpu")
    memory: str = parameter("4Gi", "Memory per pod.", form="cluster_memory")
    gpus: int = parameter(0, "GPUs per pod.", Between(0, 64), form="cluster_gpus")
    gpu_resource: str = parameter(
        "nvidia.com/gpu", "Resource name of a GPU, as registered by the device plugin."
    )
    shared_memory: str = parameter("1Gi", "Size limit of /dev/shm, which counts towards the pod's memory.")
    env: Mapping[str, str] = parameter({}, "Environment variables of the pods.")
    volumes: Sequence[str] = parameter(
        [], f"Volumes to mount into every pod: {VOLUME}; KIND is one of {', '.join(VolumeKind)}."
    )
    s3_endpoint: str = parameter(
        "",
        "Object store as host:port, as seen from the cluster (default: Kubeflow's own).",
        form="storage_endpoint",
    )
    s3_secret: str = parameter(
        "",
        f"Secret with the object store's accesskey and secretkey; {NO_SECRET}, or empty, means no secret.",
        form="storage_secret",
    )
    node_selector: Mapping[str, str] = parameter({}, "Node labels that the pods require.")
    tolerations: Sequence[Mapping[str, Any]] = parameter([], "Tolerations of the pods, as in a pod spec.")
    service_account: str = parameter("", "Service account of the pods (default: the namespace's).")
    pull_policy: str = parameter(
        "IfNotPresent", "When to pull the image.", OneOf(("IfNotPresent", "Always", "Never"))
    )
    pull_secrets: Sequence[str] = parameter([], "Secrets for the image registry.")
    labels: Mapping[str, str] = parameter({}, "Labels of the job and its pods.")
    annotations: Mapping[str, str] = parameter({}, "Annotations of the job and its pods.")
    patch: Mapping[str, Any] = parameter(
        {}, "Strategic merge patch for the pod template, for anything that has no option."
    )
    queue: str = parameter("", "Kueue queue that admits the job.")
    runtime: str = parameter(
        RUNTIME,
        "Training runtime of a TrainJob: the name of a ClusterTrainingRuntime, or TrainingRuntime/NAME "
        "for one in the namespace.",
    )
    scheduling: Mapping[str, Any] = parameter({}, "The operator's schedulingPolicy, for gang scheduling.")
    preflight: str = parameter(
        Preflight.ENFORCE.value,
        "What to do with a job that preflight finds cannot run: reject it (enforce); the same without "
        "looking at nodes, for clusters that add some (autoscaling); or log a warning and create it (warn).",
        OneOf(tuple(Preflight)),
    )
    restart: str = parameter(Restart.NEVER.value, "When to restart failed replicas.", OneOf(tuple(Restart)))
    max_restarts: int = parameter(
        3, "Maximum number of restarts; the next failure fails the job.", Between(0, 1000)
    )
    keep: str = parameter(Keep.NEVER.value, "Which finished jobs to keep on the cluster.", OneOf(tuple(Keep)))
    deadlines: Mapping[str, float] = parameter({}, f"Deadlines in seconds by stage: {', '.join(STAGES)}.")

    @property
    def processes_per_pod(self) -> int:
        """How many processes train in one pod, or begin to where their number is to be found."""
        given = 0 if isinstance(self.processes, str) else self.processes
        return given or max(1, self.gpus)

    @property
    def per_pod(self) -> dict[str, str]:
        """The resource limits of one pod."""
        gpus = {self.gpu_resource: str(self.gpus)} if self.gpus else {}
        return {"cpu": self.cpu, "memory": self.memory, **gpus}

    @property
    def mounts(self) -> tuple[Volume, ...]:
        """The volumes that are mounted into every pod."""
        return tuple(map(Volume.parsed, self.volumes))

    @property
    def limits(self) -> Deadlines:
        """What each stage may take."""
        return Deadlines(**self.deadlines)

    def conflicts(self) -> Iterator[str]:
        """What is wrong with values that have the right type: quantities, volumes, deadlines."""
        if not self.image:
            yield "`image` is empty"
        if self.min_nodes > self.nodes:
            yield f"`min_nodes` is {self.min_nodes}, more than `nodes` ({self.nodes})"
        yield from self._bad_quantities()
        yield from self._bad_volumes()
        yield from self._bad_deadlines()

    def _bad_quantities(self) -> Iterator[str]:
        for name in ("cpu", "memory", "shared_memory"):
            text = getattr(self, name)
            try:
                if quantity(text) <= 0:
                    yield f"`{name}` is {text}, must be more than 0"
            except ValueError:
                yield f"`{name}` is {text!r}, not a Kubernetes quantity such as 500m or 4Gi"

    def _bad_volumes(self) -> Iterator[str]:
        paths: set[str] = set()
        sizes: dict[tuple[str, str], str] = {}
        for text in self.volumes:
            try:
                volume = Volume.parsed(text)
            except ValueError as error:
                yield f"`volumes`: {error}"
            else:
                path = volume.path.rstrip("/")
                if path in paths:
                    yield f"`volumes`: two are mounted at {path}"
                paths.add(path)
                if sizes.setdefault((volume.kind, volume.name), volume.size) != volume.size:
                    yield f"`volumes`: {volume.kind} {volume.name} has two sizes"

    def _bad_deadlines(self) -> Iterator[str]:
        for stage, seconds in self.deadlines.items():
            if stage not in STAGES:
                yield f"`deadlines`: {stage!r} is not a stage; choose from {', '.join(STAGES)}"
            elif not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
                yield f"`deadlines`: {stage} is {seconds!r}, not a number of seconds greater than 0"


# Options that version 0.1.0 wrote into the record of a launch, with the values that had no effect.
_FORMER: Mapping[str, object] = {
    "extended_resources": {},
    "spread": "",
    "host_network": False,
    "runtime_class": "",
    "priority_class": "",
    "autoscaling": False,
    "outage": 600.0,
    "success": "all",
    "logs": "all",
}


def without_former(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Options without former ones that had no effect; one that had is left, for `from_dict` to name."""
    return {name: value for name, value in stored.items() if name not in _FORMER or value != _FORMER[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(JobOptions):
    """What a person chooses about a job that runs a command of their own."""

    command: Sequence[str] = parameter(
        [], "Command and arguments of the pods (default: the image's own).", form="job_command"
    )
    outputs: Sequence[str] = parameter(
        [],
        "URIs that must exist for the job to count as a success; one that ends in / is a folder.",
        form="job_outputs",
    )
