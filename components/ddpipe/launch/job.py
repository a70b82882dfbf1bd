"""What a training job is: frozen values, no I/O, nothing of any cluster API."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from ddpipe.errors import ParameterError, listed

# Operators append "-worker-511" and use the result as a host name, of at most 63 characters.
NAME_LIMIT = 48


class Keep(StrEnum):
    """Which finished jobs stay on the cluster for a person to look at."""

    NEVER = "never"
    FAILED = "failed"
    ALWAYS = "always"

    def keeps(self, *, failed: bool) -> bool:
        """Whether a finished job stays."""
        return self is Keep.ALWAYS or (self is Keep.FAILED and failed)


class Success(StrEnum):
    """Whose success is the job's success."""

    ALL = "all"
    RANK0 = "rank0"


class Restart(StrEnum):
    """When a failed replica is started again in place of failing the job."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One step of one run: it owns exactly one job, however often the step is retried.

    Attributes:
        pipeline: The pipeline's name; jobs of its earlier runs are swept by the next launch.
        run: The run's id: differs per run, same across retries.
        task: What tells loop iterations of one run apart; empty where nothing does.
        step: The step's name.
    """

    pipeline: str
    run: str
    step: str
    task: str = ""

    @property
    def key(self) -> str:
        """The identity as one line, kept on the job as an annotation."""
        return json.dumps([self.pipeline, self.run, self.task, self.step])

    @classmethod
    def of_key(cls, key: str) -> Owner:
        """The owner that `key` was made of; ValueError if it is not such a key."""
        match json.loads(key):
            case [str(pipeline), str(run), str(task), str(step)]:
                return cls(pipeline=pipeline, run=run, task=task, step=step)
            case _:
                raise ValueError(key)

    @property
    def job_name(self) -> str:
        """A DNS-1035 label: the step's name to be read, a hash of the identity to be unique."""
        readable = re.sub(r"[^a-z0-9]+", "-", self.step.lower()).strip("-")
        if not readable[:1].isalpha():
            readable = f"job-{readable}".rstrip("-")
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:10]
        return f"{readable[: NAME_LIMIT - 11].rstrip('-')}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many pods train, and what each may use; requests equal limits.

    Attributes:
        nodes: Pods of the job; rank 0 lives in the first.
        processes: Training processes per pod.
        cpu: CPUs per pod, as a Kubernetes quantity.
        memory: Memory per pod, as a Kubernetes quantity.
        gpus: Devices per pod.
        gpu_resource: The name that the device plugin gives to a device.
        shared_memory: Limit of /dev/shm, which counts towards the pod's memory.
    """

    nodes: int = 1
    processes: int = 1
    cpu: str = "1"
    memory: str = "2Gi"
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shared_memory: str = "1Gi"

    @property
    def per_pod(self) -> dict[str, str]:
        """The resource limits of one pod."""
        gpus = {self.gpu_resource: str(self.gpus)} if self.gpus else {}
        return {"cpu": self.cpu, "memory": self.memory, **gpus}


class VolumeKind(StrEnum):
    """What a volume shows."""

    CLAIM = "claim"
    SECRET = "secret"  # noqa: S105 - a kind of volume
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Something mounted into every replica.

    Attributes:
        kind: Claim, secret or config map.
        name: The object's name.
        path: Where it appears in the container.
        read_only: Secrets and config maps always are.
    """

    kind: VolumeKind
    name: str
    path: str
    read_only: bool = False

    @classmethod
    def parsed(cls, text: str) -> Volume:
        """The volume of KIND:NAME:PATH, with :ro at the end for reading only.

        Raises:
            ParameterError: It is not written like that.
        """
        match text.split(":"):
            case [kind, name, path, *rest] if kind in set(VolumeKind) and rest in ([], ["ro"]):
                return cls(kind=VolumeKind(kind), name=name, path=path, read_only=bool(rest))
        raise ParameterError(
            what="a volume can not be mounted",
            which=repr(text),
            seen=f"it is not KIND:NAME:PATH or KIND:NAME:PATH:ro with a KIND of {', '.join(VolumeKind)}",
            do="Correct it.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Where object-store credentials come from: keys of a secret, never values.

    Attributes:
        secret: The secret's name, in the job's namespace.
        endpoint: Host and port as the pods reach it.
        access_key: The secret's key that holds the access key.
        secret_key: The secret's key that holds the secret key.
    """

    secret: str
    endpoint: str
    access_key: str = "accesskey"
    secret_key: str = "secretkey"  # noqa: S105 - the name of a key, not the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that each stage may take; the clock stands still while the job is suspended.

    Attributes:
        reconciled: Until the operator reacts to the new job.
        scheduled: Until every pod has a node.
        pulled: Until every image is there.
        running: Until every container has started.
        finished: Until the job ends; None waits for ever.
        hopeless: How long a state must last that does not mend itself (an image that can not be pulled).
    """

    reconciled: float = 120
    scheduled: float = 1800
    pulled: float = 1800
    running: float = 300
    finished: float | None = None
    hopeless: float = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training job, whatever runs it.

    Attributes:
        owner: The step of the run that owns it; gives the name.
        namespace: Where it runs.
        image: The container image.
        command: The command, as in a container; the image's own if empty.
        args: Its arguments.
        env: Further environment variables.
        replicas: Pods and what each may use.
        outputs: URIs that must exist before the job counts as a success; one ending in "/" is a folder.
        success: Whose success counts.
        restart: When a failed replica starts again.
        max_restarts: How often, before the job fails.
        keep: Which finished jobs stay on the cluster.
        deadlines: Seconds per stage.
        volumes: What is mounted.
        s3: Object-store credentials by secret.
        node_selector: Labels that a node must have.
        tolerations: Kubernetes tolerations, as they are written in a pod.
        priority_class: The pods' priority class.
        queue: The Kueue queue that admits the job.
        scheduling: The operator's schedulingPolicy (gang scheduling), as it is written in a job.
        labels: Further labels of the job and its pods.
        annotations: Further annotations of the job and its pods.
        service_account: The pods' service account.
        pull_policy: When the kubelet pulls the image.
        pull_secrets: Secrets for the image registry.
        autoscaling: Nodes may be added: a job that no present node can take is not refused.
        patch: Strategic merge patch of the pod template, for anything unusual.
        finished_ttl: Seconds after which the cluster itself removes the finished job.
    """

    owner: Owner
    namespace: str
    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    replicas: Replicas = Replicas()
    outputs: Sequence[str] = ()
    success: Success = Success.ALL
    restart: Restart = Restart.NEVER
    max_restarts: int = 3
    keep: Keep = Keep.NEVER
    deadlines: Deadlines = Deadlines()
    volumes: Sequence[Volume] = ()
    s3: S3Access | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    priority_class: str = ""
    queue: str = ""
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    service_account: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: Sequence[str] = ()
    autoscaling: bool = False
    patch: Mapping[str, Any] = field(default_factory=dict)
    finished_ttl: int = 24 * 3600

    @property
    def name(self) -> str:
        """The job's name on the cluster."""
        return self.owner.job_name


def training_command(dataset: str, output: str, recipe: str) -> tuple[str, ...]:
    """The command of ddpipe's own training in a pod; torchrun reads the pod's PET_* variables.

    Args:
        dataset: URI of the dataset's manifest.
        output: URI of the folder for checkpoints and results.
        recipe: The recipe as JSON.
    """
    module = ("python", "-m", "torch.distributed.run", "-m", "ddpipe.train")
    return (*module, "--dataset", dataset, "--output", output, "--recipe", recipe)


_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def quantity(text: str) -> float:
    """A Kubernetes quantity ("500m", "4Gi") as a number; ValueError if it is none."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)([A-Za-z]*)", text)
    if not match or match[2] not in _SUFFIXES:
        raise ValueError(text)
    return float(match[1]) * _SUFFIXES[match[2]]


def validated(job: TrainingJob) -> TrainingJob:
    """`job`, if it makes sense.

    Raises:
        ParameterError: It does not; every problem is listed.
    """
    problems = [*_bad_numbers(job), *_bad_quantities(job.replicas)]
    if not job.image:
        problems.append("image is empty")
    if problems:
        raise ParameterError(
            what="the training job can not be right",
            which=job.name,
            seen=listed(problems),
            do="Correct these.",
        )
    return job


def _bad_numbers(job: TrainingJob) -> Iterator[str]:
    least = {"nodes": 1, "processes": 1, "gpus": 0}
    for name, limit in least.items():
        if getattr(job.replicas, name) < limit:
            yield f"{name} is {getattr(job.replicas, name)}, must be at least {limit}"
    for stage in fields(Deadlines):
        seconds = getattr(job.deadlines, stage.name)
        if seconds is not None and seconds <= 0:
            yield f"deadline {stage.name} is {seconds:g} s, must be more than 0"


def _bad_quantities(replicas: Replicas) -> Iterator[str]:
    for name in ("cpu", "memory", "shared_memory"):
        text = getattr(replicas, name)
        try:
            if quantity(text) <= 0:
                yield f"{name} is {text}, must be more than 0"
        except ValueError:
            yield f"{name} is {text!r}, no Kubernetes quantity such as 500m or 4Gi"
