"""A training job, independent of what runs it: its owner, which gives the name, and what was chosen about it.

The name is made of the owner, one step of one run, so that a retry finds the job. Labels and annotations let
a launcher recognize its own jobs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ddpipe.jobs.options import LaunchOptions
from ddpipe.kube.resources import Resource
from ddpipe.parameters import Parameters, parameter

# Operators append "-worker-511" and use the result as a host name, of at most 63 characters.
NAME_LIMIT = 48
MANAGED = "app.kubernetes.io/managed-by"
JOB = "ddpipe.dev/job"
PIPELINE = "ddpipe.dev/pipeline"
RUN = "ddpipe.dev/run"
OWNER = "ddpipe.dev/owner"
SPEC = "ddpipe.dev/spec"
KEEP = "ddpipe.dev/keep"
NODES = "ddpipe.dev/nodes"
REQUESTED_NODES = "ddpipe.dev/wished-nodes"
WORKED = "ddpipe.dev/worked-seconds"
QUEUE = "kueue.x-k8s.io/queue-name"
_AGAIN = re.compile(r"-[0-9a-f]{8}-(\d{1,2})$")  # the end of a name that is not the first


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(LaunchOptions):
    """One training job of any kind: what was chosen about it, and what it is."""

    owner: Owner
    namespace: str
    finished_ttl: int = 24 * 3600  # seconds until the cluster itself removes the finished job
    # Variables that who may read pods must not see: the job owns a Secret with them.
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)
    again: int = 0  # how often it was created under a new name, as pods of a lost node keep the name before
    # Variables of the pods that the hash of the spec leaves out, as a retry may have others: where the run is
    # tracked, the user's functions.
    unhashed: Sequence[Mapping[str, Any]] = ()
    peak_memory: int = 0  # bytes that a process of the last training had; 0: unknown

    @property
    def name(self) -> str:
        """The job's name on the cluster."""
        return _name(self.owner, self.again)


def training_command(dataset: str, output: str, recipe: str) -> tuple[str, ...]:
    """The command of ddpipe's own training in a pod; torchrun reads the pod's PET_* variables."""
    module = ("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.train")
    return (*module, "--dataset", dataset, "--output", output, "--recipe", recipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Parameters):
    """One step of one run, which owns exactly one job, even if the step is retried."""

    heading: ClassVar[str] = "Identity"

    pipeline: str = parameter(
        "ddpipe", "Name of the pipeline; jobs that its earlier runs left behind are removed."
    )
    run_id: str = parameter("", "Run ID, the same for every retry (default: a new one).")
    task_id: str = parameter("", "ID that distinguishes loop iterations within a run.")
    step: str = parameter("train", "Name of the step.")

    @property
    def key(self) -> str:
        """The identity as one line, stored as an annotation of the job."""
        return json.dumps([self.pipeline, self.run_id, self.task_id, self.step])

    @classmethod
    def of_key(cls, key: str) -> Owner:
        """The owner with this key."""
        try:
            found = json.loads(key)
        except RecursionError as error:
            raise ValueError(key[:80]) from error
        match found:
            case [str(pipeline), str(run), str(task), str(step)]:
                return cls(pipeline=pipeline, run_id=run, task_id=task, step=step)
            case _:
                raise ValueError(key)

    @property
    def job_name(self) -> str:
        """A DNS-1035 label: the step's name, to be readable, and a hash of the identity, to be unique."""
        readable = re.sub(r"[^a-z0-9]+", "-", self.step.lower()).strip("-")
        if not readable[:1].isalpha():
            readable = f"job-{readable}".rstrip("-")
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:10]
        return f"{readable[: NAME_LIMIT - 11].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """`text` as a label value: what is not allowed becomes "-", and it is short enough."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def labels_of(job: TrainingJob) -> dict[str, str]:
    """What finds a job: listings and watches select by these."""
    return {
        **job.labels,
        MANAGED: "ddpipe",
        JOB: job.name,
        PIPELINE: label_value(job.owner.pipeline),
        RUN: label_value(job.owner.run_id),
    }


def manifest_of(resource: Resource, job: TrainingJob, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The object that stands for a job, annotated with its owner, its keep policy and a hash of its spec."""
    # Of what was requested, before a server adds its defaults.
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        # Kueue reads the queue's name from a label.
        "labels": {**labels_of(job), **({QUEUE: job.queue} if job.queue else {})},
        "annotations": {**job.annotations, OWNER: job.owner.key, SPEC: digest, KEEP: job.keep},
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def owner_of(found: Mapping[str, Any]) -> Owner | None:
    """The step that created this object; None if ddpipe did not, even if its labels say so."""
    # Labels can be copied; a name that is the hash of the annotated owner was created here.
    try:
        owner = Owner.of_key(found["metadata"]["annotations"][OWNER])
    except (KeyError, ValueError):
        return None
    return owner if _name(owner, again_of(found)) == found["metadata"]["name"] else None


def _name(owner: Owner, again: int) -> str:
    """A job's name, as long as the first one."""
    return f"{owner.job_name[:-2]}-{again}" if again else owner.job_name


def again_of(found: Mapping[str, Any]) -> int:
    """How often a job of ours was created under a new name."""
    number = _AGAIN.search(found["metadata"]["name"])
    return int(number[1]) if number else 0
