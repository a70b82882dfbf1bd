"""Whether an operator that does not react to a job is silent, or busy with the jobs before it.

An operator may write about 20 objects per second, and needs some ten for a job of two pods: of 200 jobs that
are created together, the last one waits for minutes. The other jobs of its namespace show that:

    10:00:00    our job is created
    10:05:00    `reconciled` is over; another job was changed at 10:04:58: busy, so wait as long again
    10:10:00    it is over again; nothing was changed after 10:04:58: silent
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpipe.errors import LaunchError
from ddpipe.kube.cluster import ApiError, Cluster
from ddpipe.kube.resources import Object

# So many times in all: an operator that passes one job over must not be waited for forever.
_MOST_LOOKS = 5
_MOST_JOBS = 500
_BUDGET = 10.0
_TIMES = ("lastReconcileTime", "startTime", "completionTime")
_TIMES_OF_CONDITION = ("lastTransitionTime", "lastUpdateTime")


@dataclass(slots=True)
class Queue:
    """The jobs of a namespace that an operator works on."""

    _looks: int = 0
    _latest: str = ""

    def moves(self, cluster: Cluster, path: str, found: Object) -> bool:
        """Whether another job was changed since the last look, or since this one was created."""
        self._looks += 1
        before = max(self._latest, found["metadata"].get("creationTimestamp", ""))
        try:
            jobs = cluster.patient(_BUDGET).get(path, {"limit": str(_MOST_JOBS)})["items"]
        except (ApiError, LaunchError):
            return False
        others = [job for job in jobs if job["metadata"]["uid"] != found["metadata"]["uid"]]
        self._latest = max((time for job in others for time in _changes(job)), default="")
        return self._latest > before and self._looks <= _MOST_LOOKS


def _changes(job: Object) -> Iterator[str]:
    """When an operator wrote something about a job: times of the API server's form are in order as texts."""
    status = job.get("status", {})
    yield from (status.get(name) or "" for name in _TIMES)
    for condition in status.get("conditions") or ():
        yield from (condition.get(name) or "" for name in _TIMES_OF_CONDITION)
