"""One way to run the pods of a training job, as a value: all that the launch protocol needs to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self

from ddpipe.jobs import BACKENDS, CONTAINER
from ddpipe.jobs.job import JOB, TrainingJob, labels_of
from ddpipe.jobs.replicas import Read
from ddpipe.jobs.status import JobStatus, Phase
from ddpipe.kube.resources import SECRETS, Object, Resource, names


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """What acts on a kind of job."""

    name: str  # in messages
    find: str  # the command that shows its pods
    webhook: str  # what the names of its webhooks have in common; empty if it has none
    install: str  # how it gets onto a cluster: an imperative sentence without a full stop
    refusals: tuple[str, ...] = ("FailedCreate", "FailedCreatePod")  # of its events about pods
    pods: str = "the job's patch"  # where a user can set what the pods lack


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """A further object that a job needs; the job owns it, so that the cluster deletes it with the job."""

    resource: Resource
    manifest: Object

    @classmethod
    def of(cls, kind: Resource, job: TrainingJob, **content: Any) -> Self:  # noqa: ANN401 - JSON
        """An object that has the name of the job.

        Args:
            kind: Its kind.
            job: The job that will own it.
            content: Its fields apart from kind and metadata.
        """
        metadata = {"name": job.name, "namespace": job.namespace, "labels": labels_of(job)}
        about = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        return cls(resource=kind, manifest={**about, **content})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to run a training job: pure functions, a resource, and what messages say about it."""

    resource: Resource  # the kind of object that stands for a job
    controller: Controller  # what acts on it
    # (job, what the CRD knows of `spec`, or None if unknown) -> the object to create
    manifest: Callable[[TrainingJob, Object | None], dict[str, Any]]
    pod: Callable[[TrainingJob], Object]  # (job) -> the template of its pods
    phase: Callable[[Object], Phase]  # (object) -> how far the job is according to the object
    # (job, object, pods, reader of pods) -> what it is doing; pods of an earlier job of this name are ignored
    status: Callable[[TrainingJob, Object, Sequence[Object], Read], JobStatus]
    owns: Callable[[Object, Object], bool]  # (object, pod) -> whether the pod is one of this job's
    # (object) -> how many pods it asks for now, each a rank; None if its pods are no ranks
    wanted: Callable[[Object], int | None] = lambda _found: None
    # (name of the job) -> the label selector of its pods
    selector: Callable[[str], str] = lambda name: f"{JOB}={name}"
    # (object, event) -> whether the event is about the job, or what makes its pods
    concerns: Callable[[Object, Object], bool] = names
    expires: bool = True  # whether the cluster itself removes a job some time after its end
    # (job, what the CRD knows of `spec`) -> what is against choosing it for this job unasked
    lacks: Callable[[TrainingJob, Object | None], Sequence[str]] = lambda _job, _schema: ()
    needs_schema: bool = False  # whether the manifest is a guess without what the CRD knows
    # (job) -> the further objects by which its pods find each other
    services: Callable[[TrainingJob], Sequence[OwnedObject]] = lambda _job: ()
    container: str = CONTAINER  # the one that trains
    # The labels that only the pod of rank 0 has; none if labels do not distinguish it.
    first: Mapping[str, str] = field(default_factory=dict)

    def owned_objects(self, job: TrainingJob) -> Sequence[OwnedObject]:
        """The further objects that a job needs."""
        hidden = [OwnedObject.of(SECRETS, job, stringData=dict(job.hidden))] if job.hidden else []
        return [*self.services(job), *hidden]


def backend(name: str) -> Backend:
    """The backend of this name; its module is imported now."""
    found: Backend = import_module(BACKENDS[name]).BACKEND
    return found


def all_backends() -> tuple[Backend, ...]:
    """Every backend."""
    return tuple(map(backend, BACKENDS))
