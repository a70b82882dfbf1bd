"""The pods of an Indexed Job, whoever made it: each has a number, which another pod may take over."""

from __future__ import annotations

from collections.abc import Iterable

from ddpipe.jobs.status import Replica, replica_of
from ddpipe.kube.resources import Object

INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation that holds a pod's number."""


def placed(pods: Iterable[Object], container: str) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
    """The present pod of each number, in order; and those that are still there though another took over.

    Args:
        pods: The job's.
        container: Name of the container that trains.
    """
    present: dict[int, Replica] = {}
    replaced: list[Replica] = []
    for pod in sorted(pods, key=_age):
        index = int(pod["metadata"]["annotations"][INDEX])
        if index in present:
            replaced.append(present[index])
        present[index] = replica_of(pod, f"worker-{index}", container)
    return tuple(present[index] for index in sorted(present)), tuple(replaced)


def _age(pod: Object) -> tuple[str, bool]:
    """Older ones first; of those of one second, one that has ended."""
    is_over = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return pod["metadata"]["creationTimestamp"], not is_over
