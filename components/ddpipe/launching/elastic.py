"""How many pods a job continues with: the number requested, those that got a node, or those that fit.

The job is removed, so that its ranks write a checkpoint, and created again under its name. That works for
every kind of job, and needs nothing of an operator.

A request is an annotation on the job, which the launcher that follows it watches: the two need no connection
but the cluster, and the launcher no further rights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from ddpipe.errors import Forbidden, NameTaken, ParameterError
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.job import NODES, REQUESTED_NODES, WORKED, TrainingJob, owner_of
from ddpipe.jobs.options import JobOptions, Restart
from ddpipe.jobs.status import JobStatus, Replica, Stage
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.cluster import is_served, readable
from ddpipe.kube.resources import Object
from ddpipe.launching import diagnosis
from ddpipe.parameters import declared

# The numbers of pods that a job may have.
ALLOWED = next(item for item in declared(JobOptions) if item.name == "nodes")


@dataclass(frozen=True, slots=True)
class Resize:
    """Create a job again with so many pods: at most `most` that fit, or `nodes` if that cannot be seen."""

    nodes: int
    most: int
    why: str


def size_of(found: Object) -> int | None:
    """The number of pods that a job was created with; None if it is not annotated."""
    return _number(found, NODES)


def worked_before(found: Object) -> float:
    """For how many seconds earlier jobs of its step had worked when this one was created."""
    text = (found["metadata"].get("annotations") or {}).get(WORKED, "")
    return float(text) if text.isdecimal() else 0.0


def _number(found: Object, annotation: str) -> int | None:
    text = (found["metadata"].get("annotations") or {}).get(annotation, "")
    number = int(text) if text.isdecimal() else None
    return None if ALLOWED.problem(number) else number


def requested(found: Object, nodes: int) -> Resize | None:
    """The resize that somebody requested; None if nobody did, or the job has that size."""
    wanted = _number(found, REQUESTED_NODES)
    if wanted is None or wanted == nodes or "deletionTimestamp" in found["metadata"]:
        return None
    return Resize(wanted, wanted, f"scaled, nodes from {nodes} to {wanted}")


def reduced_to_scheduled(status: JobStatus, nodes: int, least: int, trouble: str) -> Resize | None:
    """The resize to the pods that have a node, if they are enough; None if they are not."""
    count = sum(replica.stage > Stage.SCHEDULED for replica in status.replicas)
    if status.stage is not Stage.SCHEDULED or not least <= count < nodes:
        return None
    return Resize(count, count, f"{trouble} ({count} of {nodes} have a node)")


def after_loss(job: TrainingJob, replicas: Sequence[Replica], stuck: Replica | None = None) -> Resize | None:
    """The resize of a job that lost a pod, or itself again for a `stuck` pod; None for another cause."""
    # A removed pod counts as lost if none had failed by itself before. A pod that fails in the same second
    # lost contact to it: with worker-1 removed at 10:00:05, an exit of worker-0 at 10:00:05 is a consequence,
    # and one at 10:00:04 is the cause.
    removed = [replica for replica in replicas if replica.removed]
    if stuck and not job.min_nodes and job.restart != Restart.NEVER:
        return Resize(job.nodes, job.nodes, f"{stuck.rank} was lost with its node {stuck.node}")
    if not job.min_nodes or not removed:
        return None
    first = min(removed, key=lambda replica: replica.removed_at)
    failures = (diagnosis.failed_at(replica) for replica in replicas if not replica.removed)
    if first.removed_at > min(failures, default=math.inf):
        return None
    why = f"{first.rank} was lost: {diagnosis.how(first)}"
    return Resize(min(job.nodes, max(job.min_nodes, job.nodes - 1)), job.nodes, why)


def scale(cluster: Cluster, namespace: str, name: str, nodes: int) -> tuple[str, int | None]:
    """Request that a job's launcher continues with so many pods; its title, and its number of pods so far."""
    if problem := ALLOWED.problem(nodes):
        raise ParameterError(
            what="no job can have this number of pods", which=name, seen=problem, do="Correct it."
        )
    backend, found = _found(cluster, namespace, name)
    title = f"{backend.resource.kind} {namespace}/{name}"
    _check(backend, found, title)
    _annotate(cluster, backend, found, title, nodes)
    return title, size_of(found)


def _found(cluster: Cluster, namespace: str, name: str) -> tuple[Backend, Object]:
    """The job of this name, of any kind; of several, one that ddpipe created."""
    served = [one for one in all_backends() if is_served(cluster, one.resource)]
    seen = [(one, readable(partial(cluster.get, one.resource.path(namespace, name)))) for one in served]
    found = [(one, job) for one, job in seen if job is not None]
    if not found:
        raise ParameterError(
            what="there is no such job",
            which=f"{namespace}/{name}",
            seen="no job of this name is on the cluster, or this account may not see it",
            do=f"List the jobs: ddpipe jobs ls -n {namespace}",
        )
    return max(found, key=lambda pair: owner_of(pair[1]) is not None)


def _check(backend: Backend, found: Object, title: str) -> None:
    """Reject a job that no launcher follows."""
    if owner_of(found) is None:
        raise NameTaken(
            what="only a job that ddpipe launched can be scaled",
            which=title,
            seen="something else created it; it was left alone",
            do="Scale it with the tool that created it.",
        )
    phase = backend.phase(found)
    if phase.is_terminal or "deletionTimestamp" in found["metadata"]:
        raise ParameterError(
            what="the job cannot be scaled",
            which=title,
            seen=f"it has {phase}" if phase.is_terminal else "it is being removed",
            do="Run the step again with another number of nodes.",
        )


def _annotate(cluster: Cluster, backend: Backend, found: Object, title: str, nodes: int) -> None:
    metadata, kind = found["metadata"], backend.resource
    try:
        cluster.annotate(
            kind.path(metadata["namespace"], metadata["name"]), metadata["uid"], {REQUESTED_NODES: str(nodes)}
        )
    except Refused as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        rule = f'{{apiGroups: ["{kind.group}"], resources: ["{kind.plural}"], verbs: [patch]}}'
        raise Forbidden(
            what="this account may not scale the job",
            which=title,
            seen=str(error),
            do=f"Add to its Role {rule}; the launcher's own needs no such rule.",
        ) from error
