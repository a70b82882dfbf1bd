"""How many pods a job continues with: the number requested, those that got a node, or those that fit.

The job is removed, so that its ranks write a checkpoint, and created again under its name. That works for
every kind of job, and needs nothing of an operator. Pure functions of what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.labels import NODES, REQUESTED_NODES, WORKED
from ddpipe.jobs.options import JobOptions
from ddpipe.jobs.status import JobStatus, Replica, Stage
from ddpipe.kube.resources import Object
from ddpipe.launching import diagnosis
from ddpipe.parameters import declared

ALLOWED = next(item for item in declared(JobOptions) if item.name == "nodes")
"""The numbers of pods that a job may have."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A job has to be created again with another number of pods.

    Attributes:
        nodes: The number of pods if this account cannot see how many fit on the nodes.
        most: The largest number of pods if it can.
        why: The reason, for a message.
    """

    nodes: int
    most: int
    why: str


def size_of(found: Object) -> int | None:
    """The number of pods that a job was created with; None if it is not annotated."""
    return _number(found, NODES)


def requested_nodes(found: Object) -> int | None:
    """The number of pods that somebody requested for a running job; None if nobody did."""
    return _number(found, REQUESTED_NODES)


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
    wanted = requested_nodes(found)
    if wanted is None or wanted == nodes or "deletionTimestamp" in found["metadata"]:
        return None
    return Resize(wanted, wanted, f"scaled, nodes from {nodes} to {wanted}")


def reduced_to_scheduled(status: JobStatus, nodes: int, least: int, trouble: str) -> Resize | None:
    """The resize to the pods that have a node, if they are enough; None if they are not."""
    count = sum(replica.stage > Stage.SCHEDULED for replica in status.replicas)
    if status.stage is not Stage.SCHEDULED or not least <= count < nodes:
        return None
    return Resize(count, count, f"{trouble} ({count} of {nodes} have a node)")


def after_loss(job: TrainingJob, replicas: Sequence[Replica]) -> Resize | None:
    """The resize of an elastic job that failed because it lost a pod; None if that is not the cause.

    A removed pod counts as lost if none had failed by itself before. A pod that fails in the same second
    lost contact to it: with worker-1 removed at 10:00:05, an exit of worker-0 at 10:00:05 is a consequence,
    and one at 10:00:04 is the cause.
    """
    removed = [replica for replica in replicas if replica.removed]
    if not job.min_nodes or not removed:
        return None
    first = min(removed, key=lambda replica: replica.removed_at)
    failures = (diagnosis.failed_at(replica) for replica in replicas if not replica.removed)
    if first.removed_at > min(failures, default=math.inf):
        return None
    why = f"{first.rank} was lost: {diagnosis.how(first)}"
    return Resize(min(job.nodes, max(job.min_nodes, job.nodes - 1)), job.nodes, why)


def fitting(job: TrainingJob, fits: int | None, unseen: int) -> int:
    """How many pods an elastic job is created with."""
    return unseen if fits is None else min(job.nodes, max(job.min_nodes, fits))
