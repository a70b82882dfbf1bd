"""One way to run a training job's pods, as a value: all that the launch protocol needs to know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ddpipe.launch.backends import BACKENDS
from ddpipe.launch.job import TrainingJob
from ddpipe.launch.labels import JOB
from ddpipe.launch.resources import Object, Resource
from ddpipe.launch.status import JobStatus, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """What acts on a kind of job.

    Attributes:
        name: What people call it.
        find: The command that shows its pods.
        webhook: What the names of its webhooks have in common; empty if it has none.
        install: How it gets onto a cluster: an imperative sentence without a full stop.
        refusals: The reasons of its events that tell of pods that it may not create.
    """

    name: str
    find: str
    webhook: str
    install: str
    refusals: tuple[str, ...] = ("FailedCreate", "FailedCreatePod")


def _labelled(job: TrainingJob) -> str:
    return f"{JOB}={job.name}"


def _same(found: Object, named: Object) -> bool:
    return bool(named.get("uid") == found["metadata"]["uid"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """An object that a job needs beside it; it belongs to the job, and goes with it.

    Attributes:
        resource: The kind of object.
        manifest: The object to create.
    """

    resource: Resource
    manifest: Object


def _no_companions(_job: TrainingJob) -> tuple[Companion, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to run a training job: pure functions, an address, and what people need to know of it.

    Attributes:
        resource: The kind of object that stands for a job.
        controller: What acts on it.
        manifest: (job, what the CRD knows of `spec`, or None if unknown) -> the object to create.
        pod: (job) -> the template of its pods.
        phase: (object) -> how far the job is, by the object's own word.
        status: (job, object, pods) -> what it is doing.
        owns: (object, pod) -> whether the pod is one of this job's.
        selector: (job) -> the labels by which its pods are found, as a query has them.
        concerns: (object, what an event is about) -> whether that is the job, or what it is made of.
        expires: Whether the cluster itself removes a job some time after its end.
        companions: (job) -> what it needs beside it.
    """

    resource: Resource
    controller: Controller
    manifest: Callable[[TrainingJob, Object | None], dict[str, Any]]
    pod: Callable[[TrainingJob], Object]
    phase: Callable[[Object], Phase]
    status: Callable[[TrainingJob, Object, Sequence[Object]], JobStatus]
    owns: Callable[[Object, Object], bool]
    selector: Callable[[TrainingJob], str] = _labelled
    concerns: Callable[[Object, Object], bool] = _same
    expires: bool = True
    companions: Callable[[TrainingJob], Sequence[Companion]] = _no_companions


def backend(name: str) -> Backend:
    """The backend of this name; its module is imported now."""
    found: Backend = import_module(BACKENDS[name]).BACKEND
    return found


def all_backends() -> tuple[Backend, ...]:
    """Every backend."""
    return tuple(map(backend, BACKENDS))
