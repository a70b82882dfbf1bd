"""The pods of an Indexed Job: each has a number, which another pod may take over."""

from __future__ import annotations

from collections.abc import Iterable

from ddpipe.jobs.replicas import Read
from ddpipe.jobs.status import Replica
from ddpipe.kube.resources import Object

INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation that holds a pod's number."""


def current_and_replaced(
    pods: Iterable[Object], container: str, read: Read
) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
    """The current pod of each number, in order; and those that still exist although another replaced them."""
    present: dict[int, Replica] = {}
    replaced: list[Replica] = []
    for pod in sorted(pods, key=_age):
        index = int(pod["metadata"]["annotations"][INDEX])
        if index in present:
            replaced.append(present[index])
        present[index] = read(pod, f"worker-{index}", container)
    return tuple(present[index] for index in sorted(present)), tuple(replaced)


def _age(pod: Object) -> tuple[str, bool]:
    """Older pods first; of pods created in the same second, one that has ended first."""
    is_over = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return pod["metadata"]["creationTimestamp"], not is_over
