"""What can be seen of one job: the object, its pods, and the events that explain why it does not start.

A thread for each of the three watches it, and posts states and troubles to one inbox. Job and pods are
needed: the launcher waits for the end of an outage, within a budget. Events are optional: they may be stored
apart from the rest, and expire. Without them the launcher continues, and explains less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.status import JobStatus
from ddpipe.kube.api import Cluster
from ddpipe.kube.resources import EVENTS, PODS, Object
from ddpipe.kube.retrying import given_up, is_transient
from ddpipe.kube.watching import Message, Picture, Trouble, WatchSource, start
from ddpipe.launching.pod_history import PodHistory


class Observer:
    """Watches one job, and has its present state."""

    def __init__(
        self,
        job: TrainingJob,
        backend: Backend,
        uid: str,
        *,
        history: PodHistory,
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.gone: Object | None = None
        self._job, self._backend, self._uid = job, backend, uid
        self._history, self._say, self._clock = history, say, clock
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._waiting: Message | None = None
        self._jobs: Mapping[str, Object] | None = None
        self._has_pods = False
        self._evidence: list[Object] = []
        self._troubles: dict[str, tuple[float, Trouble]] = {}
        self._reported: set[str] = set()
        self._is_without_events = False

    def watch(self, cluster: Cluster, stop: Event) -> None:
        """Begin to watch, until `stop` is set."""
        for source in self._sources():
            start(cluster, source, self._inbox.put, stop)

    @property
    def is_known(self) -> bool:
        """Whether the job and its pods have been seen."""
        return self._jobs is not None and self._has_pods

    @property
    def found(self) -> Object | None:
        """The job; None if it does not exist."""
        return (self._jobs or {}).get(self._uid)

    @property
    def is_current(self) -> bool:
        """Whether job and pods can be seen at the moment."""
        return not self._troubles

    @property
    def has_more(self) -> bool:
        """Whether a message has been received that is not part of the picture yet."""
        return self._waiting is not None

    @property
    def ends(self) -> list[float]:
        """When what cannot be seen at the moment will be given up."""
        return [since + self._tolerated(trouble) for since, trouble in self._troubles.values()]

    def events_of(self, status: JobStatus, found: Object) -> list[Object]:
        """The events that can explain why a job does not run, the oldest first."""
        pods = {replica.uid for replica in status.replicas}
        own = [
            event
            for event in self._evidence
            if event["involvedObject"].get("uid") in pods or self._backend.concerns(found, event)
        ]
        return sorted(own, key=_version)

    def check_outage(self, now: float) -> None:
        """Give up if job or pods could not be seen for too long."""
        for since, trouble in self._troubles.values():
            if now - since <= self._tolerated(trouble):
                continue
            if is_transient(trouble.error):
                raise given_up(trouble.error, self._job.limits.outage) from trouble.error
            raise trouble.error

    def receive(self, seconds: float) -> None:
        """Take in all messages that have come; wait for the first one for at most this many seconds."""
        # A message that starts another phase of the job is not mixed with others: a pod that vanished before
        # the job failed may be the cause, one that vanished later is a consequence.
        with suppress(Empty):
            message = self._waiting or self._inbox.get(timeout=seconds)
            self._waiting = None
            is_new_phase = self._starts_phase(message)
            self.take(message)
            while not is_new_phase:
                message = self._inbox.get_nowait()
                if self._starts_phase(message):
                    self._waiting = message
                    return
                self.take(message)

    def take(self, message: Message) -> None:
        """Take in one message."""
        match message:
            case Picture("events", objects):
                self._evidence = list(objects.values())
            case Picture("pods", objects, gone):
                self._has_pods = True
                self._history.take(objects, gone)
                self._recovered("pods")
            case Picture(source, objects, gone):
                self._jobs = objects
                if gone and gone["metadata"]["uid"] == self._uid:
                    self.gone = gone
                self._recovered(source)
            case Trouble("events", error):
                # Old events explain nothing new.
                self._evidence = []
                if not self._is_without_events:
                    self._is_without_events = True
                    self._say(f"events cannot be read, continuing without them: {error}")
            case Trouble(source, error):
                state = "is away" if is_transient(error) else "refuses"
                text = f"the API server {state}, waiting: {error}"
                if text not in self._reported:
                    self._reported.add(text)
                    self._say(text)
                since, _ = self._troubles.get(source, (self._clock(), None))
                self._troubles[source] = since, message

    def _recovered(self, source: str) -> None:
        self._troubles.pop(source, None)
        if self._reported and not self._troubles:
            self._say("the API server answers again")
            self._reported.clear()

    def _starts_phase(self, message: Message) -> bool:
        if not isinstance(message, Picture) or message.source != "job":
            return False
        before, after = self.found, message.objects.get(self._uid)
        if before is None or after is None:
            return True
        return self._backend.phase(before) is not self._backend.phase(after)

    def _tolerated(self, trouble: Trouble) -> float:
        """Seconds; a server that has just started rejects requests until it knows its roles."""
        return self._job.limits.outage if is_transient(trouble.error) else self._job.limits.hopeless

    def _sources(self) -> tuple[WatchSource, ...]:
        namespace, resource = self._job.namespace, self._backend.resource
        job = {"fieldSelector": f"metadata.name={self._job.name}"}
        pods = {"labelSelector": self._backend.selector(self._job.name)}
        return (
            WatchSource(name="job", path=resource.path(namespace), select=job),
            WatchSource(name="pods", path=PODS.path(namespace), select=pods),
            WatchSource(
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
        name = event["involvedObject"].get("name", self._job.name)
        return bool(name == self._job.name or name.startswith(f"{self._job.name}-"))


def _version(found: Object) -> int:
    version = found["metadata"]["resourceVersion"]
    return int(version) if version.isdigit() else 0
