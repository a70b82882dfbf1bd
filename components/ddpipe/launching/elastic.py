"""With how many pods a job goes on: as many as somebody asks for, as got a node, or as there is room for.

It is removed, so that its ranks write a checkpoint, and made anew under its name. That is the same for every
kind of job, and asks nothing of an operator. Pure functions of what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.labels import NODES, WISH
from ddpipe.jobs.options import JobOptions
from ddpipe.jobs.status import JobStatus, Replica, Stage
from ddpipe.kube.resources import Object
from ddpipe.launching import diagnosis
from ddpipe.parameters import declared

ALLOWED = next(item for item in declared(JobOptions) if item.name == "nodes")
"""The numbers of pods that a job may have."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A job has to be made anew.

    Attributes:
        nodes: With so many pods, where it cannot be seen what the nodes have room for.
        most: With at most so many, where it can.
        why: What has happened.
    """

    nodes: int
    most: int
    why: str


def size_of(found: Object) -> int | None:
    """The number of pods that a job was made with; None if it does not tell."""
    return _number(found, NODES)


def wish_of(found: Object) -> int | None:
    """The number of pods that somebody asks for, if anybody does."""
    return _number(found, WISH)


def _number(found: Object, annotation: str) -> int | None:
    text = (found["metadata"].get("annotations") or {}).get(annotation, "")
    number = int(text) if text.isdecimal() else None
    return None if ALLOWED.problem(number) else number


def wished(found: Object, nodes: int) -> Resize | None:
    """What somebody asks for, if it is not what the job has.

    Args:
        found: The job.
        nodes: How many pods it has.
    """
    wish = wish_of(found)
    if wish is None or wish == nodes or "deletionTimestamp" in found["metadata"]:
        return None
    return Resize(wish, wish, f"scaled, nodes from {nodes} to {wish}")


def placed(status: JobStatus, nodes: int, least: int, trouble: str) -> Resize | None:
    """The pods that have a node, if they are enough, in place of waiting for the others.

    Args:
        status: What the job is doing.
        nodes: How many pods it has.
        least: How many have to run at the same time.
        trouble: Why it cannot go on like this.
    """
    count = sum(replica.stage > Stage.SCHEDULED for replica in status.replicas)
    if status.stage is not Stage.SCHEDULED or not least <= count < nodes:
        return None
    return Resize(count, count, f"{trouble} ({count} of {nodes} have a node)")


def survived(job: TrainingJob, replicas: Sequence[Replica]) -> Resize | None:
    """How a failed job goes on, if it failed for the loss of a pod and may have fewer.

    A pod counts as lost if none had failed by itself before; what fails in the same second lost contact.

    Args:
        job: The job, with as many pods as it had.
        replicas: All that were ever seen.
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


def fitting(job: TrainingJob, room: int | None, unseen: int) -> int:
    """With how many pods a job that may have fewer begins.

    Args:
        job: The job, with as many pods as it may have.
        room: For how many the nodes have room at the moment; None if that cannot be seen.
        unseen: With how many in that case.
    """
    return unseen if room is None else min(job.nodes, max(job.min_nodes, room))
