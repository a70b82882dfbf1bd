"""States that keep a job from running, and how long each must last before the job is given up.

Some are certain: an image that does not exist will not exist in a minute. They must last for `hopeless`
seconds only, so that a typing error is reported at once. Others pass by themselves in most cases: a registry
that answers 503, a quota that still counts pods that have just gone. Of 512 nodes one sees such an answer
any day. They must last six times as long, and the kubelet must have tried to pull the image six times:

    0:00  ErrImagePull: 503 Service Unavailable    the first attempt has failed
    0:03  ImagePullBackOff                         the kubelet waits 10 s, then 20 s, 40 s, 80 s, 160 s
    0:13  ErrImagePull                             the second attempt has failed
    0:33  ErrImagePull                             the third attempt pulls for minutes; only its end is shown
    9:20  no longer waiting                        it worked

A webhook that does not answer is a part of the cluster's API that is away: the launcher waits for it as long
as for the API server, as an operator that starts on another node takes minutes. The operator's own next
attempt may come as long after the webhook's return as the outage took, because its pauses double (client-go's
default, computed from its first pause of 5 ms):

    0:41, 1:22    attempts fail    the webhook is away
    1:30                           the webhook answers
    2:44          the pods are created

Events are evidence that expires: a pod that the operator could not create is no problem once it has created
another one. So a rejection counts only if it is no older than the newest pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ddpipe.errors import ImageUnavailable, LaunchError, OperatorSilent, PodRefused
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Deadlines
from ddpipe.jobs.replicas import KILLED
from ddpipe.jobs.status import CONTAINER_TROUBLE, IMAGE_TROUBLE, JobStatus, Replica, Stage
from ddpipe.kube.resources import Object
from ddpipe.launching.advice import Cause, advice, error_about

# A state that may pass must last so many times as long as a certain one.
_DOUBT = 6
# With the kubelet's pauses of 10, 20, 40, 80 and 160 s these take about five minutes.
_PULLS = 6
_FAILED_PULL = "ErrImagePull"
_CERTAIN_REASONS = {"ErrImageNeverPull", "InvalidImageName"}
_CERTAIN_PULL = re.compile(
    r"not found|no such (image|host)|(manifest|name) unknown|unauthori[sz]ed|authentication required|denied"
    r"|forbidden|invalid reference|no match for platform|no matching manifest",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"\b(429|50[0-9])\b|tim(ed |e)out|deadline exceeded|try again|too ?many ?requests"
    r"|connection (refused|reset)|no route to host|unavailable|failed to sync|is reserved for"
    r"|failed calling webhook|internal error|etcd|exceeded quota|object is being deleted",
    re.IGNORECASE,
)
# What the API server says about pods that it refuses.
_REJECTIONS = {
    "failed calling webhook": Cause.WEBHOOK_SILENT,
    "exceeded quota": Cause.QUOTA,
    "violates PodSecurity": Cause.POLICY,
    "admission webhook": Cause.WEBHOOK,
    "object is being deleted": Cause.OLD_POD,
}
_OF_POD: Mapping[str, tuple[type[LaunchError], str, Cause]] = {
    "image": (ImageUnavailable, "an image cannot be pulled", Cause.IMAGE),
    "container": (PodRefused, "a container cannot be created", Cause.CONTAINER),
    "missing": (PodRefused, "a pod waits for something that does not exist", Cause.MISSING),
}
# In the messages of the kubelet: an object, or a key of it, that a volume names.
_MISSING = ("not found", "references non-existent", "type check failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A state that keeps a pod, or the job as a whole, from running."""

    key: tuple[object, ...]  # differs from that of others, and from its own after some progress
    kind: str  # stalls of several pods that are reported together have the same
    is_certain: bool | None  # whether it cannot pass by itself; None if its message does not show that
    error: Callable[[int], LaunchError]  # with the number of other pods in the same state
    is_outage: bool = False  # whether a part of the cluster's API does not answer
    is_new_attempt: bool = True  # the end of one, rather than the wait for the next
    attempts: int = 1  # so many must have failed before an uncertain one is given up


@dataclass(slots=True)
class _Track:
    """What was seen of one stall, and since when it has been certain."""

    since: float
    certain_since: float | None = None
    attempts: int = 1
    is_attempt: bool = True

    def update(self, stall: Stall, now: float) -> None:
        if stall.is_new_attempt and not self.is_attempt:
            self.attempts += 1
        self.is_attempt = stall.is_new_attempt
        if stall.is_certain:
            self.certain_since = now if self.certain_since is None else self.certain_since
        elif stall.is_certain is False:
            self.certain_since = None

    def ends(self, stall: Stall, limits: Deadlines) -> float | None:
        """When the job is given up if nothing changes; None if something else decides."""
        if self.certain_since is not None:
            return self.certain_since + limits.hopeless
        if stall.is_outage:
            return self.since + limits.outage
        return self.since + _DOUBT * limits.hopeless if self.attempts >= stall.attempts else None


class StallPatience:
    """How long the stalls of one job have lasted."""

    def __init__(self, limits: Deadlines) -> None:
        self._limits = limits
        self._tracks: dict[tuple[object, ...], _Track] = {}
        self.next: float | None = None

    def exhausted(self, stalls: Iterable[Stall], now: float) -> LaunchError | None:
        """The error of a stall that has lasted for too long; `next` is when to look again."""
        present = {stall.key: stall for stall in stalls}
        self._tracks = {key: self._tracks.get(key) or _Track(now) for key in present}
        ends: list[float] = []
        for key, stall in present.items():
            self._tracks[key].update(stall, now)
            end = self._tracks[key].ends(stall, self._limits)
            if end is not None and end <= now:
                return stall.error(sum(other.kind == stall.kind for other in present.values()) - 1)
            ends += [] if end is None else [end]
        self.next = min(ends, default=None)
        return None


def stalls_of(
    job: TrainingJob, backend: Backend, status: JobStatus, found: Object, events: Sequence[Object]
) -> Iterator[Stall]:
    """What keeps the job from running."""
    for replica in status.replicas:
        if replica.waiting or replica.stage in {Stage.PULLED, Stage.RUNNING}:
            yield from _of_pod(job, backend, replica, events)
    if len(status.replicas) < job.nodes:
        wanted = backend.wanted(found)
        if wanted is not None and wanted < job.nodes:
            what = "somebody changed the number of the job's pods"
            seen = f"it asks for {wanted} of {job.nodes}"
            short = error_about(job, backend, OperatorSilent, what, seen, Cause.NOT_CREATED)
            yield Stall(key=("short",), kind="short", is_certain=True, error=lambda _others: short)
        yield from _of_missing_pods(job, backend, status, events)


def _of_pod(
    job: TrainingJob, backend: Backend, replica: Replica, events: Sequence[Object]
) -> Iterator[Stall]:
    reason, _, message = replica.waiting.partition(": ")

    def stall(kind: str, seen: str, *, is_certain: bool | None, **more: Any) -> Stall:  # noqa: ANN401 - fields
        error, what, cause = _OF_POD[kind]
        do = advice(cause, job, backend)
        return Stall(
            key=(replica.uid, kind),
            kind=kind,
            is_certain=is_certain,
            error=lambda others: error(what=what, which=_which(job, replica, others), seen=seen, do=do),
            **more,
        )

    if reason in IMAGE_TROUBLE:
        detail = message if _explains(message) else _event_of(replica, events, "Failed", "image")
        certain, is_new = _is_certain_pull(job, reason, detail), reason == _FAILED_PULL
        seen = f"{reason}: {detail or message}"
        yield stall("image", seen, is_certain=certain, is_new_attempt=is_new, attempts=_PULLS)
    elif reason in CONTAINER_TROUBLE:
        yield stall("container", f"{reason}: {message}", is_certain=not _PASSING.search(message))
    elif missing := _missing_object(replica, message, events):
        yield stall("missing", missing, is_certain=True)


def _is_certain_pull(job: TrainingJob, reason: str, message: str) -> bool | None:
    if reason in _CERTAIN_REASONS:
        return True
    # The name may have any word in it.
    text = message.replace(job.image, "")
    if _PASSING.search(text):
        return False
    if _CERTAIN_PULL.search(text):
        return True
    return False if _explains(message) else None


def _explains(message: str) -> bool:
    """Whether a message says more than that the kubelet waits for its next attempt."""
    return bool(message) and not re.fullmatch(r'Back-off pulling image "[^"]*"', message)


def _missing_object(replica: Replica, message: str, events: Sequence[Object]) -> str:
    if replica.stage in {Stage.PULLED, Stage.RUNNING}:
        for words in _MISSING:
            if mount := _event_of(replica, events, "FailedMount", words):
                return mount
    return message if "not found" in message else ""


def _event_of(replica: Replica, events: Sequence[Object], reason: str, words: str) -> str:
    """The message of the latest event of a pod that has these words; empty if there is none."""
    messages = (
        str(event.get("message", ""))
        for event in reversed(events)
        if event["involvedObject"].get("uid") == replica.uid and event.get("reason") == reason
    )
    return next((message for message in messages if words in message), "")


def with_kill(replica: Replica, events: Sequence[Object]) -> Replica:
    """The replica with the probe or hook for which its kubelet has killed the container."""
    ending = replica.ending
    kinds = (("Unhealthy", "Liveness"), ("Unhealthy", "Startup"), ("FailedPostStartHook", "failed"))
    reasons = (_event_of(replica, events, *kind) for kind in kinds)
    reason = next(filter(None, reasons), "")
    if ending is None or ending.code not in KILLED or not reason:
        return replica
    return replace(replica, ending=replace(ending, reason=reason.strip()))


def _of_missing_pods(
    job: TrainingJob, backend: Backend, status: JobStatus, events: Sequence[Object]
) -> Iterator[Stall]:
    """Pods that are not even accepted show in the operator's events only."""
    newest = max((replica.created for replica in status.replicas), default=0.0)
    current = [
        str(event.get("message", ""))
        for event in events
        if event.get("reason") in backend.controller.refusals and _time_of(event) >= newest
    ]
    if current:
        message = current[-1]
        cause = next((cause for words, cause in _REJECTIONS.items() if words in message), Cause.UNKNOWN)
        is_outage = cause is Cause.WEBHOOK_SILENT
        what = "the cluster rejects the job's pods"
        rejected = error_about(job, backend, PodRefused, what, message, cause)
        yield Stall(
            key=("rejected", is_outage, len(status.replicas), newest),
            kind="rejected",
            is_certain=not _PASSING.search(message),
            is_outage=is_outage,
            error=lambda _others: rejected,
        )


def latest_warning(status: JobStatus, events: Sequence[Object]) -> tuple[str, str]:
    """The latest event about a pod that has a node and waits without a reason: its keyword, and a text."""
    starting = {Stage.PULLED, Stage.RUNNING}
    waiting = {
        one.uid: one.rank for one in status.replicas if one.stage in starting and ": " not in one.waiting
    }
    for event in reversed(events):
        if rank := waiting.get(event["involvedObject"].get("uid", "")):
            reason = str(event.get("reason", "Warning"))
            count = (event.get("series") or {}).get("count") or event.get("count") or 1
            times = f" ({count} times)" if count > 1 else ""
            return reason, f"{rank}: {reason}{times}: {event.get('message', '')}"
    return "", ""


def _time_of(event: Object) -> float:
    """When an event happened last, in seconds since 1970; infinity if it does not say."""
    series, metadata = event.get("series") or {}, event["metadata"]
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    text = next(filter(None, (*times, metadata.get("creationTimestamp"))), None)
    return datetime.fromisoformat(text).timestamp() if text else float("inf")


def _which(job: TrainingJob, replica: Replica, others: int) -> str:
    more = f" and {others} other pods" if others > 1 else " and another pod" if others else ""
    return f"{replica.rank} (pod {job.namespace}/{replica.pod}){more}"
