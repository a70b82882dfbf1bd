"""Follow a job from its creation to its end: watched, never polled; every wait has its limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Event

from ddpipe.errors import LaunchError
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Success
from ddpipe.jobs.status import JobStatus, Phase, Replica, Stage
from ddpipe.kube.api import Cluster
from ddpipe.kube.resources import EVENTS, PODS, Object
from ddpipe.kube.retrying import given_up, is_transient
from ddpipe.kube.watching import Message, Picture, Source, Trouble, start
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.deadlines import Limits
from ddpipe.launching.elastic import Resize
from ddpipe.launching.logs import Logs
from ddpipe.launching.progress import Progress
from ddpipe.launching.record import STUCK_SECONDS, Record
from ddpipe.launching.stalls import Patience, Stall, is_evidence, stalls_of

_NEEDED = {"job", "pods"}
# Of what happened on the way, the last are repeated when the job fails.
_NOTES = 3
# A look costs time for each pod: so the next one follows after some time for each pod.
_PAUSE_PER_POD, _LONGEST_PAUSE = 0.0004, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that ended, one way or the other.

    Attributes:
        status: Its last status.
        replicas: The last state of every pod whose failure can explain the end.
        restarts: How often containers were restarted or pods replaced.
        notes: What happened on the way and may explain the end.
        deleted: Whether somebody has deleted the job, which goes.
    """

    status: JobStatus
    replicas: tuple[Replica, ...]
    restarts: int
    notes: tuple[str, ...]
    deleted: bool


@dataclass(slots=True)
class Follower:
    """Follows one job.

    Attributes:
        cluster: Where it runs.
        job: What runs.
        least: How many of its pods have to run at the same time.
        backend: What kind of job it is.
        uid: Which object it is: another one of the same name is not ours.
        logs: Reads its logs.
        say: Tells people what changes.
        limits: How long everything may take.
        clock: Seconds that never go back.
    """

    cluster: Cluster
    job: TrainingJob
    least: int
    backend: Backend
    uid: str
    logs: Logs
    say: Callable[[str], None]
    limits: Limits
    clock: Callable[[], float] = time.monotonic
    _inbox: SimpleQueue[Message] = field(default_factory=SimpleQueue)
    _waiting: Message | None = None
    _pictures: dict[str, Mapping[str, Object]] = field(default_factory=dict)
    _troubles: dict[str, tuple[float, Trouble]] = field(default_factory=dict)
    _gone: Object | None = None
    _notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))
    _troubles_told: set[str] = field(default_factory=set)
    _is_without_events: bool = False
    _evidence: list[Object] = field(default_factory=list)
    _record: Record = field(init=False)
    _patience: Patience = field(init=False)
    _progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self._record = Record(self.job, self.backend)
        self._patience = Patience(self.limits.deadlines.hopeless)
        self._progress = Progress(self.job, self.say)

    def follow(self) -> Ended | Resize:
        """Wait for the job's end, or for a reason to make it anew.

        Raises:
            LaunchError: It cannot come to an end, or must not.
            Refused: This account may not follow it any more.
        """
        stop = Event()
        for source in self._sources():
            start(self.cluster, source, self._inbox.put, stop)
        try:
            while True:
                moments = [since + self._tolerated(told) for since, told in self._troubles.values()]
                moments += self._progress.next
                moments += [self._patience.next] if self._patience.next is not None else []
                self._receive(self.limits.patience(self.clock(), moments))
                found = self._look()
                if found:
                    return found
                if self._waiting is None:
                    # While hundreds of pods change, several changes are looked at together.
                    time.sleep(min(_LONGEST_PAUSE, self.job.nodes * _PAUSE_PER_POD))
        finally:
            stop.set()

    def _sources(self) -> tuple[Source, ...]:
        namespace, resource = self.job.namespace, self.backend.resource
        return (
            Source(
                name="job",
                path=resource.path(namespace),
                select={"fieldSelector": f"metadata.name={self.job.name}"},
            ),
            Source(
                name="pods",
                path=PODS.path(namespace),
                select={"labelSelector": self.backend.selector(self.job)},
            ),
            Source(
                name="events",
                path=EVENTS.path(namespace),
                select={"fieldSelector": "type=Warning"},
                concerns=self._is_event_of_job,
                optional=True,
                bookmarked=False,
            ),
        )

    def _is_event_of_job(self, event: Object) -> bool:
        """By name: the names of all objects of a job begin with its own. No selector can express that."""
        name = event["involvedObject"].get("name", self.job.name)
        return bool(name == self.job.name or name.startswith(f"{self.job.name}-"))

    def _receive(self, seconds: float) -> None:
        """Take in all messages that have come; wait for the first one for at most so long.

        A message that starts another phase of the job is not mixed with others: whether a pod went before the
        job failed, or after, makes it the cause or a consequence.
        """
        with suppress(Empty):
            message = self._waiting or self._inbox.get(timeout=seconds)
            self._waiting = None
            is_new_phase = self._starts_phase(message)
            self._take(message)
            while not is_new_phase:
                message = self._inbox.get_nowait()
                if self._starts_phase(message):
                    self._waiting = message
                    return
                self._take(message)

    def _starts_phase(self, message: Message) -> bool:
        if not isinstance(message, Picture) or message.source != "job":
            return False
        before, after = self._pictures.get("job", {}).get(self.uid), message.objects.get(self.uid)
        if before is None or after is None:
            return True
        return self.backend.phase(before) is not self.backend.phase(after)

    def _take(self, message: Message) -> None:
        match message:
            case Picture("events", objects):
                self._evidence = [item for item in objects.values() if is_evidence(self.backend, item)]
            case Picture(source, objects, gone):
                self._pictures[source] = objects
                if source == "pods":
                    self._record.take(objects, gone)
                elif gone and gone["metadata"]["uid"] == self.uid:
                    self._gone = gone
                self._troubles.pop(source, None)
                if self._troubles_told and not self._troubles:
                    self.say("the API server answers again")
                    self._troubles_told.clear()
            case Trouble("events", error):
                # They are optional: the job and its pods show how it is doing. Old ones explain nothing new.
                self._evidence = []
                if not self._is_without_events:
                    self._is_without_events = True
                    self.say(f"events cannot be read, continuing without them: {error}")
            case Trouble(source, error):
                state = "is away" if is_transient(error) else "refuses"
                text = f"the API server {state}, waiting: {error}"
                if text not in self._troubles_told:
                    self._troubles_told.add(text)
                    self.say(text)
                since, _ = self._troubles.get(source, (self.clock(), None))
                self._troubles[source] = since, message

    def _look(self) -> Ended | Resize | None:
        """Judge the present picture."""
        now = self.clock()
        self._check_outage(now)
        if not self._pictures.keys() >= _NEEDED:
            return None
        found = self._pictures["job"].get(self.uid)
        if found is None:
            return self._end_of_removed(now)
        status = self._record.look(found, now)
        if status.phase is Phase.ACTIVE:
            self._report_lost()
        self.logs.see(status.replicas)
        self._progress.report(status, now)
        if status.phase.is_terminal:
            return self._end(status, found, now)
        return self._need_to_act(status, found, now)

    def _need_to_act(self, status: JobStatus, found: Object, now: float) -> Ended | Resize | None:
        """Why a job that has not ended cannot continue as it is.

        Raises:
            LaunchError: It cannot continue at all.
        """
        if status.phase is Phase.ACTIVE and (stuck := self._record.stuck(now)):
            return self._end_of_stuck(stuck, status)
        if resize := elastic.requested(found, self.job.nodes):
            return resize
        error = self._hopeless(status, found, now) or self._late(status, now)
        if error is None:
            return None
        if fewer := elastic.reduced_to_scheduled(status, self.job.nodes, self.least, error.what):
            return fewer
        raise error

    def _report_lost(self) -> None:
        """Report the pods that are lost; what is known of the last of them is kept for the end."""
        if lost := self._record.newly_lost():
            self._note(diagnosis.summary(lost, "is replaced", "are replaced"))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self.say(text)

    def _end_of_removed(self, now: float) -> Ended | None:
        """The end of a job that is gone: another launcher of this step removed it once it had ended."""
        if self._gone is None or not self.backend.phase(self._gone).is_terminal:
            raise diagnosis.deleted(self.job, self.backend)
        return self._end(self._record.look_back(self._gone), self._gone, now)

    def _end_of_stuck(self, stuck: Replica, status: JobStatus) -> Ended:
        """The end of a job that waits for a pod to end: operators do not replace it before."""
        self._note(
            f"{stuck.rank} is still terminating {stuck.grace + STUCK_SECONDS:.0f} s after its deletion was "
            f"requested, its node {stuck.node} may be lost (kubectl get node {stuck.node}; then "
            f"kubectl delete pod --force --grace-period=0 -n {self.job.namespace} {stuck.pod})"
        )
        return self._ended(replace(status, phase=Phase.FAILED), deleted=False)

    def _end(self, status: JobStatus, found: Object, now: float) -> Ended | None:
        """The end, once the pods' states are in too."""
        if self._is_complete(status) or self.limits.has_settled(now):
            return self._ended(status, deleted="deletionTimestamp" in found["metadata"])
        return None

    def _ended(self, status: JobStatus, *, deleted: bool) -> Ended:
        return Ended(
            status=status,
            replicas=self._record.replicas,
            restarts=status.restarts + self._record.replacements,
            notes=tuple(self._notes),
            deleted=deleted,
        )

    def _is_complete(self, status: JobStatus) -> bool:
        if status.phase is Phase.FAILED:
            return self._record.has_failures
        if self.job.success == Success.RANK0:
            return bool(status.replicas) and status.replicas[0].over
        return all(replica.over for replica in status.replicas)

    def _check_outage(self, now: float) -> None:
        for since, trouble in self._troubles.values():
            if now - since <= self._tolerated(trouble):
                continue
            if is_transient(trouble.error):
                raise given_up(trouble.error, self.job.outage) from trouble.error
            raise trouble.error

    def _tolerated(self, trouble: Trouble) -> float:
        """Seconds; a refusal may be one of a server that has just started and does not know its roles yet."""
        return self.job.outage if is_transient(trouble.error) else self.limits.deadlines.hopeless

    def _hopeless(self, status: JobStatus, found: Object, now: float) -> LaunchError | None:
        """The error of a state that has lasted for too long to pass by itself."""
        stalls: Iterable[Stall] = ()
        if status.phase is Phase.ACTIVE and status.stage is not Stage.FINISHED:
            stalls = stalls_of(self.job, self.backend, status, self._own_events(status, found))
        return self._patience.exhausted(stalls, now)

    def _own_events(self, status: JobStatus, found: Object) -> list[Object]:
        """The events about the job and its pods that can explain why it does not run, the oldest first."""
        pods = {replica.uid for replica in status.replicas}
        own = [
            event
            for event in self._evidence
            if event["involvedObject"].get("uid") in pods or self.backend.concerns(found, event)
        ]
        return sorted(own, key=_version)

    def _late(self, status: JobStatus, now: float) -> LaunchError | None:
        running = status.phase is Phase.ACTIVE and not self._troubles
        overdue = self.limits.exceeded(status.stage, now, running=running)
        return None if overdue is None else diagnosis.late(self.job, self.backend, status, overdue)


def _version(found: Object) -> int:
    version = found["metadata"]["resourceVersion"]
    return int(version) if version.isdigit() else 0
