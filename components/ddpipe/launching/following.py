"""Follow a job from its creation to its end.

Nothing is polled: the watches report changes (observer), what became of the pods is remembered (record), and
every wait has a limit (deadlines, stalls). A look at the job ends in one of these:

    nothing            wait for the next change, or for the next limit
    Ended              the job has succeeded or failed; the launcher concludes
    Resize             the job must be created again with another number of pods
    LaunchError        the job cannot come to an end, or takes too long

Which pods count as lost, excused or replaced, and why, is in pod_history.py. Its example, look by look:

    10:00:00    all pods run                 nothing; of the deadlines, only `finished` counts from here on
    10:05:00    worker-1 is evicted          nothing: with restart=ExitCode the operator replaces it
    10:05:20    another worker-1 exists      nothing; prints "worker-1 is replaced", and keeps it as a note
    10:06:30    all have run for a while     nothing: the job has recovered, the eviction is forgotten
    14:00:00    the job has failed           nothing yet: the end of worker-0 is not known; waits up to 2 s
    14:00:00.2  worker-0 exited with code 1  Ended: with its exit code and the notes

Without the wait, the job would fail without a cause: job and pods are watched separately, in any order.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Event

from ddpipe.errors import LaunchError
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Restart
from ddpipe.jobs.status import JobStatus, Phase, Replica, Run, Stage
from ddpipe.kube.api import ApiError, Cluster, Refused
from ddpipe.kube.capacity import quantity
from ddpipe.kube.resources import METRICS, Object
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.deadlines import Limits, ran_since
from ddpipe.launching.elastic import Resize
from ddpipe.launching.logs import Logs
from ddpipe.launching.observer import Observer
from ddpipe.launching.pod_history import STUCK_SECONDS, PodHistory
from ddpipe.launching.progress import Progress
from ddpipe.launching.stalls import Stall, StallPatience, latest_warning, stalls_of, with_kill

# Kubernetes takes a node for lost after so many seconds by default, since 1.32 after ten more.
UNSEEN_SECONDS = 40
# A rank that begins again prints for so long; if nothing follows for so long, it waits for the others.
_BEGINNING, _QUIET = 30.0, 60.0
# Of nodes that come and go, so many lines are printed: the outage of a network takes hundreds of them.
_NODE_LINES = 16
# Of the notes that were printed, the last are repeated when the job fails.
_NOTES = 3
# Looking at the job takes time for each pod, and so does the pause until the next look.
_PAUSE_PER_POD, _LONGEST_PAUSE = 0.0004, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that has succeeded or failed."""

    status: JobStatus
    replicas: tuple[Replica, ...]  # the last state of every pod whose failure can explain the end
    restarts: int
    notes: tuple[str, ...]
    deleted: bool  # whether somebody has requested it
    found: Object
    stuck: Replica | None = None  # a pod that does not end, for which its operator waits


def _starved(status: JobStatus) -> str:
    """A rank that did not notice that a process in it was killed; empty if there is none."""
    ends = ((one.rank, one.ending.reason) for one in status.replicas if one.ending and not one.ending.code)
    rank = next((rank for rank, reason in ends if reason == "OOMKilled"), "")
    return rank and f"{rank} exited with 0, though a process in it was killed for memory"


@dataclass(slots=True)
class Follower:
    """Follows one job."""

    cluster: Cluster
    job: TrainingJob
    least: int  # so many of its pods have to run at the same time
    backend: Backend
    uid: str  # another object of the same name is not the job
    logs: Logs
    say: Callable[[str], None]
    limits: Limits
    clock: Callable[[], float] = time.monotonic
    adopted: bool = False  # it may have run before this launcher followed it
    _notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))
    _wanted: int | None = None
    _warning: str = ""
    _warned: set[str] = field(default_factory=set)
    _silent: set[str] = field(default_factory=set)
    _node_lines: int = 0
    _before: set[Run] = field(default_factory=set)  # what ran when a node fell silent
    _torn_since: float | None = None
    _history: PodHistory = field(init=False)
    _observer: Observer = field(init=False)
    _patience: StallPatience = field(init=False)
    _progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self._history = PodHistory(self.job, self.backend)
        self._observer = Observer(
            self.job, self.backend, self.uid, history=self._history, say=self.say, clock=self.clock
        )
        self._patience = StallPatience(self.limits.deadlines)
        self._progress = Progress(self.job, self.say, self.logs.reports)

    def follow(self) -> Ended | Resize:
        """Wait for the job's end, or for a reason to create it again."""
        stop = Event()
        self._observer.watch(self.cluster, stop)
        try:
            while True:
                due = (self._patience.next, self._history.next)
                moments = [*self._observer.ends, *self._progress.next, *(at for at in due if at is not None)]
                if self.limits.deadlines.silence is not None:
                    moments.append(self.logs.silence.since + self.limits.deadlines.silence)
                if self._torn_since is not None:
                    moments.append(self._torn_since + _BEGINNING + _QUIET)
                self._observer.receive(self.limits.patience(self.clock(), moments))
                if result := self._look():
                    return result
                if not self._observer.has_more:
                    # While hundreds of pods change, several changes are looked at together.
                    time.sleep(min(_LONGEST_PAUSE, self.job.nodes * _PAUSE_PER_POD))
        finally:
            stop.set()

    def _look(self) -> Ended | Resize | None:
        """Judge what can be seen at the moment."""
        now = self.clock()
        self._observer.check_outage(now)
        if not self._observer.is_known:
            return None
        found = self._observer.found
        if found is None:  # another launcher of this step removes the job once it has ended
            gone = self._observer.gone
            if gone is None or not self.backend.phase(gone).is_terminal:
                raise diagnosis.deleted(self.job, self.backend)
            return self._end(self._history.look_back(gone), gone, now)
        status = self._history.look(found, now)
        if status.phase is Phase.ACTIVE and (lost := self._history.newly_lost()):
            self._note("; ".join(diagnosis.summaries(lost, "is replaced", "are replaced")))
        for text in {self._history.staying, _starved(status)}.difference({"", *self._notes}):
            self._note(text)
        self._note_nodes(status)
        self.logs.see(status.replicas)
        self._progress.report(status, now)
        if status.phase.is_terminal:
            # Judged by its pods alone: a deleted job takes its pods along, and that may be seen first.
            if not self.backend.phase(found).is_terminal and self._is_removed():
                raise diagnosis.deleted(self.job, self.backend)
            return self._end(status, found, now)
        return self._need_to_act(status, found, now)

    def _need_to_act(self, status: JobStatus, found: Object, now: float) -> Ended | Resize | None:
        """Why a job that has not ended cannot continue as it is."""
        if status.phase is Phase.ACTIVE and (stuck := self._history.stuck(now)):
            return self._end_of_stuck(stuck, status, found)
        wanted = self.backend.wanted(found)
        if wanted not in {None, self.job.nodes, self._wanted}:
            self._wanted = wanted
            self._note(f"somebody changed the number of its pods from {self.job.nodes} to {wanted}")
        if resize := elastic.requested(found, self.job.nodes) or self._torn(status, now):
            return resize
        error = self._hopeless(status, found, now) or self._late(status, found, now)
        if error is None:
            self._end_if_hung(status, now)
            return None
        if fewer := elastic.reduced_to_scheduled(status, self.job.nodes, self.least, error.what):
            return fewer
        raise error

    def _is_removed(self) -> bool:
        """Whether the server says that there is no such job any more."""
        try:
            found = self.cluster.get(self.backend.resource.path(self.job.namespace, self.job.name))
        except ApiError as error:
            return isinstance(error, Refused) and error.status == HTTPStatus.NOT_FOUND
        return bool(found["metadata"]["uid"] != self.uid)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self.say(text)

    def _note_nodes(self, status: JobStatus) -> None:
        """Say once which nodes do not report any more, and which do again."""
        silent = {one.node: one.rank for one in status.replicas if one.is_unseen}
        for node in silent.keys() - self._silent:
            seen = f"node {node} has not reported for {UNSEEN_SECONDS} s or more, with {silent[node]} on it"
            self._notes.append(seen)
            self._say_of_node(seen)
        for node in self._silent - silent.keys():
            self._say_of_node(f"node {node} reports again, or its pods are gone")
        self._silent = set(silent)
        if silent:
            self._before = self._before or {one.run for one in status.replicas}

    def _say_of_node(self, text: str) -> None:
        self._node_lines += 1
        if self._node_lines <= _NODE_LINES:
            self.say(text)
        elif self._node_lines == _NODE_LINES + 1:
            self.say("many nodes come and go: no more lines about them follow")

    def _torn(self, status: JobStatus, now: float) -> Resize | None:
        """A job one of whose ranks began again with its node, while the others still wait for it."""
        runs = {one.run for one in status.replicas if one.is_running}
        is_torn = self._before & runs and runs - self._before and len(runs) == self.job.nodes
        if not is_torn or self._silent or self.job.restart == Restart.NEVER:
            self._torn_since = None
            return None
        if self._torn_since is None:
            self._torn_since = now
        quiet_since = self._torn_since + _BEGINNING
        if now < quiet_since + _QUIET:
            return None
        ranks = ", ".join(one.rank for one in status.replicas if one.run not in self._before)
        self._before, self._torn_since = set(), None
        if self.logs.silence.last > quiet_since:
            return None
        why = f"{ranks} began again with its node, and nothing was printed for {_QUIET:.0f} s"
        return Resize(self.job.nodes, self.job.nodes, why)

    def _end_of_stuck(self, stuck: Replica, status: JobStatus, found: Object) -> Ended:
        """The end of a job that waits for a pod to end: operators do not replace it before."""
        if not stuck.is_unseen:
            self._note(
                f"{stuck.rank} is still terminating {stuck.grace + STUCK_SECONDS:.0f} s after its deletion "
                f"was requested, its node {stuck.node} may be lost (kubectl get node {stuck.node}; then "
                f"kubectl delete pod --force --grace-period=0 -n {self.job.namespace} {stuck.pod})"
            )
        ended = self._ended(replace(status, phase=Phase.FAILED), found, deleted=False)
        return replace(ended, stuck=stuck)

    def _end(self, status: JobStatus, found: Object, now: float) -> Ended | None:
        """The end, once the last states of the pods are known too."""
        missing = self._history.missing(found, status) if status.phase is Phase.SUCCEEDED else 0
        is_late = missing > 0 or not self._observer.is_current
        has_failed = status.phase is Phase.FAILED
        is_known = self._history.has_failures if has_failed else all(one.over for one in status.replicas)
        if (is_known and not missing) or self.limits.has_settled(now, reconnecting=is_late):
            if missing:
                seen = f"{missing} of {self.job.nodes} pods were not seen to succeed"
                status = replace(status, phase=Phase.FAILED, message=seen)
            return self._ended(status, found, deleted="deletionTimestamp" in found["metadata"])
        return None

    def _ended(self, status: JobStatus, found: Object, *, deleted: bool) -> Ended:
        events = self._observer.events_of(status, found)
        return Ended(
            status=status,
            replicas=tuple(with_kill(one, events) for one in self._history.replicas),
            restarts=status.restarts + self._history.replacements,
            notes=tuple(self._notes),
            deleted=deleted,
            found=found,
        )

    def _hopeless(self, status: JobStatus, found: Object, now: float) -> LaunchError | None:
        """The error of a state that has lasted for too long to pass by itself."""
        stalls: Sequence[Stall] = ()
        if status.phase is Phase.ACTIVE and status.stage is not Stage.FINISHED:
            events = self._observer.events_of(status, found)
            stalls = list(stalls_of(self.job, self.backend, status, found, events))
            reason, self._warning = latest_warning(status, events)
            self._say_once(reason, self._warning)
            for error in (stall.error(0) for stall in stalls if stall.is_outage):
                self._say_once(error.what, f"waiting, as {error.what}: {error.seen}")
        return self._patience.exhausted(stalls, now)

    def _say_once(self, reason: str, text: str) -> None:
        """Print a text, each reason once: there may be thousands of events."""
        if reason and reason not in self._warned:
            self._warned.add(reason)
            self.say(text)

    def _late(self, status: JobStatus, found: Object, now: float) -> LaunchError | None:
        running = status.phase is Phase.ACTIVE and self._observer.is_current
        if self.adopted and status.stage is Stage.FINISHED:
            self.adopted = False
            self.limits.worked += max(0.0, self.cluster.now() - ran_since(status.replicas))
        overdue = self.limits.exceeded(status.stage, now, running=running)
        if overdue is None:
            return None
        wanted = self.backend.wanted(found)
        return diagnosis.late(self.job, self.backend, status, overdue, self._warning, wanted)

    def _end_if_hung(self, status: JobStatus, now: float) -> None:
        """End a job none of whose ranks prints any more, if a deadline says so; a warning comes first."""
        silence, limit = self.logs.silence, self.limits.deadlines.silence
        if status.stage is not Stage.FINISHED or not self._observer.is_current or math.isinf(silence.since):
            silence.begin(now)
        running = {one.rank: one for one in status.replicas if one.is_running}
        if warning := silence.warning(running, now, lambda rank: self._used(running[rank])):
            self._note(warning)
        if limit is None or now < silence.since + limit:
            return
        if self.logs.is_silent(running.values(), limit):
            raise diagnosis.hung(self.job, self.backend, limit)
        silence.begin(now)

    def _used(self, replica: Replica) -> str:
        """The processors that a pod uses, if the cluster measures it: most ranks that hang wait."""
        try:
            found = self.cluster.get(METRICS.path(self.job.namespace, replica.pod))
            used = sum(quantity(one["usage"]["cpu"]) for one in found["containers"])
        except (ApiError, KeyError, TypeError, ValueError):
            return ""
        return f" (uses {used:.2f} CPUs)"
