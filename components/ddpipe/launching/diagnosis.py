"""Why a job failed, as errors that a person can act on. Pure functions of what was seen."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from ddpipe.errors import (
    DeadlineExceeded,
    JobDeleted,
    LaunchError,
    OperatorSilent,
    ReplicaFailed,
    Unschedulable,
)
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Restart
from ddpipe.jobs.replicas import KILLED
from ddpipe.jobs.status import Ending, JobStatus, Replica, Stage, torch_error
from ddpipe.kube.api import Refused
from ddpipe.launching.advice import Cause, advice, error_about, name_of
from ddpipe.launching.deadlines import Overdue
from ddpipe.processes import machine
from ddpipe.processes.machine import first_killed

_SHOWN_LINES = 12
_SHOWN_RANKS, _SHOWN_CAUSES = 5, 3
_NOT_STARTED = {"StartError", "ContainerCannotRun"}
_LOST = "ContainerStatusUnknown"
_OF_KUBELET = {*_NOT_STARTED, _LOST}  # the message is not the container's
_CODES = {
    126: Cause.NO_COMMAND,  # so shells call what cannot be executed
    127: Cause.NO_COMMAND,  # and what does not exist
    128 + signal.SIGHUP: Cause.STOPPED,
    128 + signal.SIGINT: Cause.STOPPED,
    128 + signal.SIGKILL: Cause.SHOT,
    128 + signal.SIGTERM: Cause.STOPPED,
}


def late(
    job: TrainingJob,
    backend: Backend,
    status: JobStatus,
    overdue: Overdue,
    warning: str = "",
    wanted: int | None = None,
) -> LaunchError:
    """The error of a stage that lasted longer than its deadline, with the latest event about its pods."""
    waiting = [f"{replica.rank}: {replica.waiting}" for replica in status.replicas if replica.waiting]
    seen = "; ".join(waiting[:3]) or f"{len(status.replicas)} of {job.nodes} pods exist"
    seen += f"; the latest warning is {warning}" if warning else ""
    seconds, is_short = overdue.limit, wanted is not None and wanted < job.nodes
    if overdue.stage is Stage.RECONCILED and not is_short:
        return operator_silent(job, backend, f"nothing happened to it for {seconds:.0f} s")
    if overdue.stage <= Stage.SCHEDULED and is_short:
        kind: type[LaunchError] = OperatorSilent
        what, cause = "not all pods were created in time", Cause.NOT_CREATED
        seen = f"it asks for {wanted} of {job.nodes} pods"
    else:
        kind, what, cause = _LATE[overdue.stage]
        if overdue.stage is Stage.SCHEDULED:
            cause = next((other for words, other in _NOT_FOR_ROOM.items() if words in seen), cause)
    seen = f"after {seconds:.0f} s: {seen}"
    if overdue.stage is Stage.FINISHED:
        seen = f"still running after {seconds:.0f} s; it was stopped"
    return error_about(job, backend, kind, what, seen, cause)


def hung(job: TrainingJob, backend: Backend, seconds: float) -> LaunchError:
    """The error of a job whose ranks run and do not print."""
    seen = f"no rank printed a line for {seconds:.0f} s; it was stopped"
    return error_about(job, backend, DeadlineExceeded, "training seems to hang", seen, Cause.HUNG)


_NOT_FOR_ROOM = {
    "SchedulingGated": Cause.GATED,
    "PersistentVolumeClaim": Cause.UNBOUND,
    "storageclass": Cause.UNBOUND,
}
"""Why a scheduler leaves pods without a node, though there may be room."""
_LATE: Mapping[Stage, tuple[type[LaunchError], str, Cause]] = {
    Stage.SCHEDULED: (Unschedulable, "not all pods got a node in time", Cause.NOT_SCHEDULED),
    Stage.PULLED: (DeadlineExceeded, "not all images were ready in time", Cause.NOT_PULLED),
    Stage.RUNNING: (DeadlineExceeded, "not all containers were ready in time", Cause.NOT_STARTED),
    Stage.FINISHED: (DeadlineExceeded, "training did not end in time", Cause.TOO_LONG),
}


def operator_silent(job: TrainingJob, backend: Backend, seen: str) -> OperatorSilent:
    """The error of an operator that does not act on the job."""
    what = f"the {backend.controller.name} does not answer"
    return error_about(job, backend, OperatorSilent, what, seen, Cause.OPERATOR_SILENT)


def webhook_silent(job: TrainingJob, backend: Backend, refusal: Refused) -> OperatorSilent | None:
    """The error of a webhook that did not answer the API server; None if that is not the reason."""
    if "failed calling webhook" not in refusal.message:
        return None
    webhook = backend.controller.webhook
    if webhook and webhook in refusal.message:
        return operator_silent(job, backend, refusal.message)
    what = "a webhook of the cluster does not answer"
    return error_about(job, backend, OperatorSilent, what, refusal.message, Cause.WEBHOOK_SILENT)


def deleted(job: TrainingJob, backend: Backend) -> JobDeleted:
    """The error of a job that somebody else deleted."""
    what, seen = "the job was deleted while it was followed", "it is no longer on the cluster"
    return error_about(job, backend, JobDeleted, what, seen, Cause.JOB_DELETED)


def failure(
    job: TrainingJob,
    backend: Backend,
    message: str,
    *,
    replicas: Iterable[Replica],
    tail: Callable[[str], Sequence[str]],
    notes: Sequence[str],
) -> ReplicaFailed:
    """The root cause of a failed job: the replica that failed first, how it ended, and its last lines."""
    failed = sorted((replica for replica in replicas if replica.has_failed), key=_when)
    if not failed:
        seen = "; ".join([message or "the operator gives no reason", *notes])
        return error_about(job, backend, ReplicaFailed, "training failed", seen, Cause.UNKNOWN)
    first = failed[0]
    # Once a replica has failed by itself, the operator removes those that still run.
    others = [replica for replica in failed[1:] if first.removed or not replica.removed]
    also = [f"then {text}" for text in summaries(others, "", "")[:_SHOWN_CAUSES]]
    restarted = [f"{first.rank} had been restarted {first.restarts} times"] if first.restarts else []
    node = f" (node {first.node})" if first.node else ""
    last = tail(first.uid)
    killed = first_killed("\n".join(last))
    inside = [f"rank {killed.rank} in it was killed by {killed.signal}"] if killed else []
    return ReplicaFailed(
        what="training failed",
        which=f"{first.rank} of {name_of(job, backend)}{node}",
        seen="; ".join([how(first), *inside, *restarted, *also, *notes]) + _last_words(first.failure, last),
        do=advice(
            _cause(first), job, backend, memory=first.memory, node=first.node, survive=_way_to_survive(job)
        ),
    )


def _when(replica: Replica) -> tuple[float, int, float]:
    """The time of its failure, to sort by."""
    # Times have whole seconds. Of failures in one second: a killed replica comes first: others exit by
    # themselves when they lose contact to it; a removed replica comes last: operators remove replicas because
    # another one failed; of two removed replicas the one that ended first comes first.
    ending = replica.failure
    if replica.removed or ending is None:
        return replica.removed_at, 2, failed_at(replica)
    return failed_at(replica), int(ending.code == 1), 0


def failed_at(replica: Replica) -> float:
    """When a replica failed by itself, in whole seconds since 1970; infinity if it did not, or if unknown."""
    ending = replica.failure
    time = torch_error(ending.message)[1] if ending else None
    if time is None and ending and ending.finished:
        time = datetime.fromisoformat(ending.finished).timestamp()
    # A failure without a time sorts last; infinity // 1 would be NaN, which does not sort at all.
    return math.inf if time is None else time // 1


def how(replica: Replica) -> str:
    """How a replica ended."""
    ending = replica.failure
    if ending is None:
        return replica.removed or "it is gone"
    who = f"its container {ending.container}: " if ending.container else ""
    end = who + _end(replica, ending)
    return f"{replica.removed}; {end}" if replica.removed else end


def summaries(replicas: Iterable[Replica], one: str, many: str, *, on_nodes: bool = False) -> list[str]:
    """How pods ended, a text for each way to end; pods with the same end are counted."""
    groups: dict[str, list[str]] = {}
    for replica in replicas:
        on = f" on {replica.node}" if on_nodes and replica.node else ""
        groups.setdefault(how(replica), []).append(f"{replica.rank}{on}")
    return [f"{_subject(ranks, one, many)}: {end}" for end, ranks in groups.items()]


def _subject(ranks: Sequence[str], one: str, many: str) -> str:
    if len(ranks) == 1:
        return f"{ranks[0]} {one}".rstrip()
    names = ", ".join(ranks[:_SHOWN_RANKS]) + (", …" if len(ranks) > _SHOWN_RANKS else "")
    return f"{len(ranks)} pods {many}".rstrip() + f" ({names})"


def _end(replica: Replica, ending: Ending) -> str:
    if ending.reason == "OOMKilled":
        return f"out of memory, killed at its limit of {replica.memory} (OOMKilled)"
    if ending.reason in _NOT_STARTED:
        return f"its command cannot be started: {ending.message}"
    if ending.reason == _LOST:
        return "its node does not know what became of its container"
    if ending.code in KILLED:
        why = f" by its kubelet: {ending.reason}" if " failed" in ending.reason else ""
        return f"killed by {machine.name_of(ending.code - KILLED.start + 1)} (exit code {ending.code}){why}"
    return f"exit code {ending.code}"


def _last_words(ending: Ending | None, tail: Sequence[str]) -> str:
    is_own = ending and ending.reason not in _OF_KUBELET
    text, time = torch_error(ending.message) if ending and is_own else ("", None)
    lines = text.splitlines() if time is not None or not tail else list(tail)
    if not lines:
        return ""
    return "\nIts last lines:" + "".join(f"\n    {line}" for line in lines[-_SHOWN_LINES:])


def _way_to_survive(job: TrainingJob) -> str:
    """The setting with which the job would have survived the loss of a pod, unless it is on already."""
    if job.min_nodes or job.restart == Restart.EXIT_CODE:
        return f"Increase `max_restarts` (now {job.max_restarts}) to survive more losses."
    return "With `min_nodes`, or with `restart` ExitCode, it would continue by itself."


def _cause(replica: Replica) -> Cause:
    ending = replica.failure
    if replica.removed or ending is None:
        return Cause.POD_LOST
    if ending.container:
        return Cause.ANOTHER_CONTAINER
    if ending.reason == "OOMKilled":
        return Cause.OUT_OF_MEMORY
    if " failed" in ending.reason:
        return Cause.HOOK
    if ending.reason in _NOT_STARTED:
        return Cause.NO_COMMAND
    return _CODES.get(ending.code, Cause.CRASHED if ending.code in KILLED else Cause.EXITED)
