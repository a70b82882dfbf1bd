"""What a pod is doing, as a `Replica`. Nothing else interprets the pods that the API server shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from ddpipe.jobs import JOB_VARIABLE
from ddpipe.jobs.status import CONTAINER_TROUBLE, Ending, Replica, Stage, condition
from ddpipe.kube.resources import Object

# (pod, its rank in messages, name of the container that trains) -> the replica.
Read = Callable[[Object, str, str], Replica]
# Shells add the number of a signal to 128. Higher codes are a program's own: sys.exit(-1) is 255.
KILLED = range(129, 193)
INDEX = "batch.kubernetes.io/job-completion-index"  # the annotation that holds a pod's number


class Cache:
    """Reads each version of a pod once: of 512 pods, one has changed since the last look."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, str, Replica]] = {}

    def __call__(self, pod: Object, rank: str, container: str) -> Replica:
        """The pod as a replica."""
        metadata = pod["metadata"]
        version = metadata.get("resourceVersion", "")
        known, name, replica = self._read.get(metadata["uid"], ("", "", None))
        if replica is None or not version or (known, name) != (version, rank):
            replica = replica_of(pod, rank, container)
            self._read[metadata["uid"]] = version, rank, replica
        return replica

    def keep(self, uids: Sequence[str]) -> None:
        """Forget all pods but these."""
        self._read = {uid: self._read[uid] for uid in uids if uid in self._read}


def replica_of(pod: Object, rank: str, container: str) -> Replica:
    """A pod as a replica; a webhook may have renamed the container that trains."""
    specs = {item["name"]: item for item in pod["spec"]["containers"]}
    if container not in specs:
        ours = (name for name, item in specs.items() if _named(item.get("env"), JOB_VARIABLE))
        container = next(ours, container)
    main = _named(pod.get("status", {}).get("containerStatuses"), container)
    culprit = _culprit(pod, main, container)
    terminated = culprit.get("state", {}).get("terminated")
    last = culprit.get("lastState", {}).get("terminated")
    other = "" if culprit is main else str(culprit["name"])
    is_doomed = bool(other and terminated and pod["spec"].get("restartPolicy") == "Never")
    kinds = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    limits = _named(kinds, other or container).get("resources", {}).get("limits", {})
    return Replica(
        rank=rank,
        pod=pod["metadata"]["name"],
        # Of an init container that failed there is a log; of the one that trains none.
        container=container if _has_begun(main) else other or container,
        uid=pod["metadata"]["uid"],
        node=pod["spec"].get("nodeName") or "",
        created=_seconds(pod["metadata"].get("creationTimestamp")),
        began=_began(pod, main),
        stage=Stage.FINISHED if is_doomed else _stage(pod, main),
        over=_is_over(pod),
        removed=_removal(pod, culprit),
        removed_at=_deletion_requested(pod["metadata"]),
        grace=float(pod["metadata"].get("deletionGracePeriodSeconds") or 0),
        has_begun=_has_begun(main),
        waiting=_waiting(pod),
        restarts=main.get("restartCount", 0),
        ending=_ending(terminated, other) if terminated else None,
        previous=_ending(last, other) if last else None,
        memory=limits.get("memory", ""),
        beside=", ".join(
            item["name"]
            for item in pod.get("status", {}).get("containerStatuses") or ()
            if item["name"] != container and "running" in item.get("state", {})
        ),
        is_unseen=is_unseen(pod),
    )


def is_unseen(pod: Object) -> bool:
    """Whether its node does not report any more: then Kubernetes calls a pod unready, its containers not."""
    states = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions") or ()}
    own = pod["spec"].get("readinessGates")
    return (states.get("Ready"), states.get("ContainersReady")) == ("False", "True") and not own


def _seconds(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _began(pod: Object, main: Object) -> float:
    """When the container first ran: of its runs the pod shows the present one and the one before."""
    if main.get("restartCount", 0) > 1:
        return _seconds(pod["status"].get("startTime"))
    runs = [*main.get("lastState", {}).values(), *main.get("state", {}).values()]
    return _seconds(next((run["startedAt"] for run in runs if run.get("startedAt")), None))


def _named(items: Sequence[Object] | None, name: str) -> Object:
    return next((item for item in items or () if item["name"] == name), {})


def _stage(pod: Object, main: Object) -> Stage:
    if _is_over(pod) or _has_begun(main) or main.get("restartCount"):
        return Stage.FINISHED
    if not pod["spec"].get("nodeName"):
        return Stage.SCHEDULED
    trouble = _waiting(pod).partition(":")[0]
    return Stage.RUNNING if trouble in CONTAINER_TROUBLE else Stage.PULLED


def _has_begun(main: Object) -> bool:
    return bool(main.get("state", {}).keys() & {"running", "terminated"})


def _is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _waiting(pod: Object) -> str:
    """Why nothing runs: the scheduler's reason, or the first waiting container's; init containers first."""
    status = pod.get("status", {})
    for item in status.get("conditions") or ():
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return _reason(item)
    for item in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if waiting := item.get("state", {}).get("waiting"):
            return _reason(waiting)
    return ""


def _reason(state: Object) -> str:
    return ": ".join(filter(None, (state.get("reason"), state.get("message"))))


def _ending(terminated: Object, container: str) -> Ending:
    return Ending(
        code=terminated.get("exitCode", 1),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", "").strip(),
        finished=terminated.get("finishedAt") or "",
        container=container,
    )


def _culprit(pod: Object, main: Object, container: str) -> Object:
    """The container whose end is the pod's: the one that trains, unless only another one has failed."""
    # An init container that fails keeps it from starting. A sidecar that fails makes the pod fail, for every
    # kind of job, though the one that trains has succeeded.
    status = pod.get("status", {})
    others = status.get("initContainerStatuses") or ()
    if _has_begun(main) or main.get("lastState"):
        is_another = status.get("phase") == "Failed" and not _last_code(main)
        beside = status.get("containerStatuses") or () if is_another else ()
        others = [item for item in beside if item["name"] != container]
    return next((item for item in others if _last_code(item)), main)


def _last_code(item: Object) -> int:
    """The exit code of a container's present or last run; 0 if none has ended."""
    ended = item.get("state", {}).get("terminated") or item.get("lastState", {}).get("terminated") or {}
    return int(ended.get("exitCode", 0))


def _removal(pod: Object, main: Object) -> str:
    """Why the pod was removed before its work was done: evicted, lost with its node, or deleted."""
    status, metadata = pod.get("status", {}), pod["metadata"]
    disruption = condition(pod, "DisruptionTarget") or {}
    reason = status.get("reason") or disruption.get("reason")
    if reason and status.get("phase") != "Succeeded":
        message = status.get("message") or disruption.get("message") or ""
        return f"its pod was removed ({reason}: {message})"
    requested = _deletion_requested(metadata)
    if requested and not _ended_before(requested, main):
        return "its pod was deleted"
    return ""


def _deletion_requested(metadata: Object) -> float:
    """When its deletion was requested, in seconds since 1970; 0 means never."""
    # A deletion timestamp is the end of the grace period.
    if "deletionTimestamp" not in metadata:
        return 0
    return _seconds(metadata["deletionTimestamp"]) - float(metadata.get("deletionGracePeriodSeconds") or 0)


def _ended_before(requested: float, main: Object) -> bool:
    """Whether the container had ended by itself before the request, as when an operator cleans up."""
    # One that waits for its restart has ended before. Times have whole seconds: if both happened in one
    # second, the exit code shows whether a signal ended the container.
    terminated = main.get("state", {}).get("terminated")
    if not terminated:
        return "running" not in main.get("state", {}) and bool(main.get("lastState", {}).get("terminated"))
    if not terminated.get("finishedAt"):
        return False
    finished = _seconds(terminated["finishedAt"])
    by_itself = terminated.get("reason") == "OOMKilled" or terminated.get("exitCode") not in {0, *KILLED}
    return finished < requested or (finished == requested and by_itself)


def name_within(found: Object, pod: Object) -> str:
    """What a pod's name adds to that of its job."""
    return str(pod["metadata"]["name"]).removeprefix(f"{found['metadata']['name']}-")


def current_and_replaced(
    pods: Iterable[Object], container: str, read: Read
) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
    """The current pod of each number, in order; and those that still exist although another replaced them."""
    present: dict[int, Replica] = {}
    replaced: list[Replica] = []
    # Of pods created in the same second, one that has ended is the older one.
    for pod in sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], not _is_over(pod))):
        index = int(pod["metadata"]["annotations"][INDEX])
        if index in present:
            replaced.append(present[index])
        present[index] = read(pod, f"worker-{index}", container)
    return tuple(present[index] for index in sorted(present)), tuple(replaced)


def stage_of(replicas: Sequence[Replica], nodes: int, *, is_taken_up: bool) -> Stage:
    """What a job waits for: the slowest of its pods, once all are there."""
    if len(replicas) >= nodes:
        return min(replica.stage for replica in replicas)
    return Stage.SCHEDULED if replicas or is_taken_up else Stage.RECONCILED
