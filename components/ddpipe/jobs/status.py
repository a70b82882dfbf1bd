"""What a job and its pods are doing: values, in one vocabulary for every kind of job."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from ddpipe.kube.resources import Object

# The kubelet's words for an image that does not come, and for a container that cannot start from it.
IMAGE_TROUBLE = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
}
CONTAINER_TROUBLE = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


class Phase(StrEnum):
    """How far the job is; only Succeeded is success."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing will change any more."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


class Stage(IntEnum):
    """What a replica, or the job as a whole, waits for next."""

    RECONCILED = 0
    SCHEDULED = 1
    PULLED = 2
    RUNNING = 3
    FINISHED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a container ended."""

    code: int
    reason: str
    message: str  # the error file, or the last lines of the log
    finished: str  # RFC 3339
    container: str = ""  # if it is not the one that trains


# One run of a container: the pod's uid, and how often the container had been restarted before.
Run = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One pod."""

    rank: str
    pod: str
    container: str
    uid: str
    node: str
    created: float
    began: float  # when its container first ran, as far as the pod shows it; 0 before
    stage: Stage
    over: bool  # the pod has ended for good; a container alone may start again
    removed: str  # who took the pod away before its work was done; empty if nobody did
    removed_at: float  # when its deletion was requested; 0 if it was not
    grace: float
    has_begun: bool  # its container runs or ran, in its present run
    waiting: str  # why the container does not run, as "Reason: message"; empty if it does
    restarts: int
    ending: Ending | None
    previous: Ending | None  # of the container before the last restart
    memory: str
    beside: str = ""  # the containers that still run, apart from the one that trains
    is_unseen: bool = False  # its node does not report any more: nobody knows what it does

    @property
    def failure(self) -> Ending | None:
        """How its container failed: now, or before its restart; None if it succeeded since."""
        last = self.ending or self.previous
        return last if last and last.code != 0 else None

    @property
    def run(self) -> Run:
        """The present run of its container."""
        return self.uid, self.restarts

    @property
    def is_terminating(self) -> bool:
        """Whether its deletion was requested and the pod has not ended yet."""
        return self.removed_at > 0 and not self.over

    @property
    def is_running(self) -> bool:
        """Whether its container runs, and nobody removes the pod."""
        return self.has_begun and self.ending is None and not self.over and not self.removed

    @property
    def has_succeeded(self) -> bool:
        """Whether its container has done its work; other containers of the pod may still run."""
        return not self.has_failed and (self.over or self.ending is not None)

    @property
    def has_failed(self) -> bool:
        """Whether it did not, or cannot, do its work."""
        return bool(self.removed) or self.failure is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment."""

    phase: Phase
    stage: Stage  # what the slowest replica waits for
    message: str
    replicas: tuple[Replica, ...]
    succeeded: int = 0  # pods, as the controller counts them; 0 if it does not
    replaced: tuple[Replica, ...] = ()  # still there though another one has taken their place

    @property
    def restarts(self) -> int:
        """Container restarts of all replicas."""
        return sum(replica.restarts for replica in self.replicas)


def condition(found: Object, kind: str) -> Object | None:
    """The condition of this type whose status is True: operators leave old ones with status False."""
    conditions = found.get("status", {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind and item["status"] == "True"), None)


def true_conditions(found: Object) -> list[str]:
    """The types of the conditions that hold, in the order in which they came."""
    conditions = found.get("status", {}).get("conditions") or ()
    return [item["type"] for item in conditions if item["status"] == "True"]


def torch_error(message: str) -> tuple[str, float | None]:
    """The text and time (seconds since 1970) of a torch error file, which torchrun leaves as the message."""
    try:
        error = json.loads(message)["message"]
        if isinstance(error, str):
            return error, None
        moment = float(error["extraInfo"]["timestamp"])
        return str(error["message"]), moment if math.isfinite(moment) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # a container writes anything
        return message, None
