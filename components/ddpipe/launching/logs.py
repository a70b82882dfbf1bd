"""The ranks' logs as prefixed lines: none lost, none twice, over a bounded number of connections.

The logs of the chosen ranks are followed, each by a thread of its own, so that a slow log never delays the
watching of the job. Of the others the last lines are read once a container has failed. A log that was cut is
requested again from the second of the last line (the API knows no finer); lines seen are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count, islice
from threading import Condition, Thread
from time import monotonic, sleep, time
from typing import Any

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.status import Replica, Stage
from ddpipe.kube.cluster import ApiError, Cluster, Query, Unanswered, pages
from ddpipe.kube.resources import PODS
from ddpipe.kube.retrying import RateLimiter, is_transient, reconnected
from ddpipe.launching.loglines import Instant, Line, Mark, instant, lines_of, unread
from ddpipe.launching.progress import Silence
from ddpipe.processes.reports import Reported, Reports

# After so much silence a log is requested again; training may well write nothing for minutes.
_SILENCE = 1800
# Until a run's first line has come, its stream may be the next run's: after so much silence, then twice as
# long, the log is requested again. The kubelet deletes a run's log when the next run ends.
_FIRST_SILENCE = 15.0
# Open connections: a process may have 1,024 files open, and a person reads fewer logs than this.
MOST_FOLLOWED = 64
# So many logs are opened at once, then so many per second: when 64 pods start, each has a log to open, and
# where nodes cannot show logs, each is requested again and again.
_OPENED_AT_ONCE, _OPENED_PER_SECOND = 10, 3.0
# Seconds for the last lines that somebody waits for.
_ANSWER = 5
# Failed ranks whose last lines are read: many fail for the reason of the first.
MOST_FAILED = 16
_LAST_LINES, _ATTEMPTS = 100, 10
# Pods whose last lines are kept, those that are gone included.
_MOST_KEPT = 256
TAIL = 20  # last lines that are kept of a log
# A node that cannot show logs is not asked by dozens of threads all the time.
_LONGEST_PAUSE = 30
# On a busy node a container's last lines get their times after its end; the next run begins after a second.
_DRAINING = 1

# Gives the bytes of a pod's log, with a time in front of each line, as long as no silence is too long.
OpenLog = Callable[[Replica, Query, float], Iterator[bytes]]
# Receives a line: its rank, the line, and the last lines of the log, which it changes.
Take = Callable[[str, Line, deque[str]], None]


class Logs:
    """The logs of a job."""

    def __init__(
        self,
        cluster: Cluster,
        pods: str,
        write: Callable[[str], None],
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cluster, self.pods = cluster, pods
        self.reports, self.silence = Reports(), Silence()
        self._write, self._say = write, say
        self._followed: dict[str, PodLog] = {}
        self._failed: dict[str, _LastLines] = {}
        self._is_limited = False
        self.limiter = RateLimiter(_OPENED_AT_ONCE, _OPENED_PER_SECOND)

    def see(self, replicas: Iterable[Replica]) -> None:
        """Follow these pods' logs of so many as can be; pods no longer among them are gone."""
        present = {replica.uid: replica for replica in replicas}
        for uid, log in self._followed.items():
            log.see(present.get(uid))
        running = sum(log.thread.is_alive() for log in self._followed.values())
        for uid, replica in present.items():
            if uid in self._followed or replica.stage is not Stage.FINISHED:
                continue
            if running < MOST_FOLLOWED and uid not in self._failed:
                self._followed[uid] = PodLog(replica, self._in_turn, self.take)
                running += 1
                continue
            if not self._is_limited and uid not in self._failed:
                self._is_limited = True
                self._say(f"following the logs of {MOST_FOLLOWED} pods, of the others only those that fail")
            self._read_if_failed(replica, present)
        _forget(self._followed, present, _MOST_KEPT)
        _forget(self._failed, present, _MOST_KEPT)

    def take(self, rank: str, line: Line, tail: deque[str]) -> None:
        """Write one line, and keep what may be needed of it."""
        if line.finished:
            tail.append(line.text)
        self.silence.take(rank, monotonic())
        self.reports.take(rank, line.text, float(line.time[0]) if line.time else time())
        self._write(f"[{rank}] {line.text}")

    def tail(self, uid: str) -> tuple[str, ...]:
        """The last lines of a pod's log."""
        reader = self._followed.get(uid) or self._failed.get(uid)
        return tuple(reader.tail) if reader else ()

    def finish(self, silence: float = 5) -> tuple[str, ...]:
        """Wait for the logs of all pods that have ended, as long as lines come within `silence` seconds."""
        readers: list[PodLog | _LastLines] = [*self._followed.values(), *self._failed.values()]
        read, until = -1, 0.0
        while behind := [reader for reader in readers if reader.is_behind]:
            lines = sum(reader.lines for reader in behind)
            if lines != read:
                read, until = lines, monotonic() + silence
            if monotonic() > until:
                break
            behind[0].thread.join(0.05)
        return tuple(reader.rank for reader in behind)

    def is_silent(self, replicas: Iterable[Replica], seconds: float) -> bool:
        """Whether these pods' logs hold no line of the last seconds, by a request of their own.

        A connection that follows a log may be dead without a sign, for as long as half an hour.
        """
        since = self.cluster.now() - seconds
        chosen = list(replicas)[:MOST_FOLLOWED]
        last: list[Instant | None] = []
        try:
            for one in chosen:
                pieces = self._in_turn(one, {"tailLines": "1"}, _ANSWER)
                last += (line.time for line in lines_of(pieces, complete=True))
        except ApiError:
            return False
        return bool(chosen) and all(time is not None and time[0] < since for time in last)

    def _in_turn(self, replica: Replica, query: Query, idle: float) -> Iterator[bytes]:
        self.limiter.wait()
        return self._pieces(replica, query, idle)

    def _pieces(self, replica: Replica, query: Query, idle: float) -> Iterator[bytes]:
        query = {"container": replica.container, "timestamps": "true", **query}
        return self.cluster.pieces(f"{self.pods}/{replica.pod}/log", query, idle)

    def _read_if_failed(self, replica: Replica, present: Collection[str]) -> None:
        before = self._failed.get(replica.uid)
        if replica.failure is None or (before and before.restarts == replica.restarts):
            return
        if before or sum(uid in present for uid in self._failed) < MOST_FAILED:
            self._failed[replica.uid] = _LastLines(replica, self._pieces, self.take)


def progress_of(cluster: Cluster, namespace: str, kind: Backend, job: str) -> Reported | None:
    """How far a job is by the last lines of its first pod that runs; None if these cannot be read."""
    query = {"labelSelector": kind.selector(job), "fieldSelector": "status.phase=Running"}
    reports, now = Reports(), cluster.now()
    try:
        found = [item for page in pages(cluster.get_metadata, PODS.path(namespace), query) for item in page]
        # In the order of their names, the master or the pod of rank 0 is the first.
        first = min((item["metadata"]["name"] for item in found), default="")
        last = {"container": kind.container, "timestamps": "true", "tailLines": str(_LAST_LINES)}
        pieces = cluster.pieces(f"{PODS.path(namespace, first)}/log", last, _ANSWER) if first else ()
        for line in lines_of(pieces, complete=True):
            reports.take(first, line.text, float(line.time[0]) if line.time else now)
    except ApiError:
        return None
    return reports.now(now)


def _forget(readers: dict[str, Any], present: Collection[str], most: int) -> None:
    """Forget the oldest logs of pods that are gone: a job may replace its pods for weeks."""
    done = (uid for uid, reader in readers.items() if uid not in present and not reader.thread.is_alive())
    for uid in list(islice(done, max(0, len(readers) - most))):
        del readers[uid]


class _LastLines:
    """The last lines of a container that failed and whose log nobody followed."""

    def __init__(self, replica: Replica, open_log: OpenLog, take: Take) -> None:
        self._replica, self._open_log, self._take = replica, open_log, take
        self.rank, self.restarts = replica.rank, replica.restarts
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.lines = 0
        self._attempts = count(1)
        self.thread = Thread(target=self._read, name=f"last lines of {replica.rank}", daemon=True)
        self.thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether the lines are not all read."""
        return self.thread.is_alive()

    def _read(self) -> None:
        for line in reconnected(self._open, self._is_over, sleep):
            self.lines += 1
            self._take(self.rank, line, self.tail)

    def _open(self) -> Iterator[Line]:
        """Read whole before any line is written: an attempt that is cut writes nothing."""
        which = {"previous": "true"} if self._replica.ending is None else {}
        pieces = self._open_log(self._replica, {"tailLines": str(_LAST_LINES), **which}, _SILENCE)
        return iter(list(lines_of(pieces, complete=True)))

    def _is_over(self, error: ApiError | None) -> bool:
        return error is None or not is_transient(error) or next(self._attempts) == _ATTEMPTS


class PodLog:
    """Reads one pod's log: each run of its container to its end, one after the other.

    The kubelet keeps the logs of two runs, and a log that was followed as one run's may be that of the next.
    So once a run is known to be over, its log is read from the start, and its first line's time shows whether
    it was read before. Only a restart that we see, or the end of the pod, makes certain whose log that is.
    """

    def __init__(self, replica: Replica, open_log: OpenLog, take: Take) -> None:
        self._replica, self._open_log, self._take = replica, open_log, take
        self.rank, self._gone = replica.rank, False
        self._earlier: list[Mark] = []
        self._changed = Condition()
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.lines = 0
        self._runs = 0
        self._run: _RunLog | None = None
        self.thread = Thread(target=self._read, name=f"log {replica.rank}", daemon=True)
        self.thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether the container has ended and its log is not read to the end."""
        run, present = self._run, self._replica.restarts
        if run and run.is_unsure and not self.is_certain(run.number):
            return False
        return self.has_ended(present) and self.thread.is_alive() and self._runs <= present

    def open(self, query: Query, idle: float) -> Iterator[bytes]:
        """The container's log: what it shows at present."""
        return self._open_log(self._replica, query, idle)

    def see(self, replica: Replica | None) -> None:
        """Take in the pod's present state; None when it is gone."""
        if replica == self._replica and not self._gone:
            return
        with self._changed:
            self._replica, self._gone = replica or self._replica, replica is None
            self._changed.notify_all()

    def is_kept(self, run: int) -> bool:
        """Whether the kubelet still has the log of this run."""
        return self._replica.restarts <= run + 1

    def is_previous(self, run: int) -> bool:
        """Whether another run has come after this one."""
        return self._replica.restarts > run

    def has_ended(self, run: int) -> bool:
        """Whether this run of the container is over."""
        return self.is_certain(run) or self._replica.ending is not None

    def is_certain(self, run: int) -> bool:
        """Whether this run is over and no other one can be taken for it."""
        return self._gone or self._replica.over or self._replica.restarts > run

    def end_of(self, run: int) -> Instant | None:
        """When this run ended, if it has and another one may be shown for it."""
        replica = self._replica
        ending = replica.previous if replica.restarts == run + 1 else None
        if replica.restarts == run and not self.is_certain(run):
            ending = replica.ending
        return instant(ending.finished) if ending else None

    def _has_begun(self, run: int) -> bool:
        replica = self._replica
        has_begun = replica.has_begun or replica.ending is not None
        return replica.restarts > run or (replica.restarts == run and has_begun)

    def _read(self) -> None:
        for run in count():
            self._await(partial(self._has_begun, run))
            if not self._has_begun(run):
                return
            if self.is_kept(run):
                self._read_run(run)
            self._runs = run + 1

    def _await(self, happened: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: happened() or self._gone or self._replica.over)

    def _pause(self, run: _RunLog, seconds: float) -> None:
        """Wait, but not beyond the end of the run or the restart after it: they change what to read."""
        number = run.number

        def known() -> tuple[bool, bool]:
            return self.has_ended(number), self.is_certain(number)

        before = known()
        with self._changed:
            if run.is_unsure:
                self._changed.wait_for(partial(self.is_certain, number))
            else:
                self._changed.wait_for(lambda: known() != before, seconds)

    def _read_run(self, number: int) -> None:
        run = self._run = _RunLog(self, number, self._earlier)
        pause = partial(self._pause, run)
        for line in reconnected(run.read, run.is_over, pause, _LONGEST_PAUSE):
            self.lines += 1
            self._take(self.rank, line, self.tail)
        self._earlier = run.marks


class _RunLog:
    """The log of one run of a container: read to an end that came after the container's."""

    # Until then an end of the log may be only a cut.

    def __init__(self, pod: PodLog, number: int, earlier: Iterable[Mark]) -> None:
        self._pod, self.number = pod, number
        self._earlier = list(earlier)
        self.mark = Mark()
        self.is_unsure = False  # read to an end that may be the next run's: no line shows whose it is
        self._has_ended = self._is_previous = False
        self._end: Instant | None = None
        self._idle = _FIRST_SILENCE

    def read(self) -> Iterator[Line]:
        """The lines that were not read yet, until the log ends or is cut."""
        self.is_unsure = False
        if self._pod.is_previous(self.number) and not self._is_previous:
            self._earlier.append(self.mark)
            self.mark, self._is_previous = Mark(), True
        self._has_ended = self._pod.has_ended(self.number)
        self._end = None if self._is_previous else self._pod.end_of(self.number)
        which = {"previous": "true"} if self._is_previous else {} if self._end else {"follow": "true"}
        idle, self._idle = self._idle, min(2 * self._idle, _SILENCE)
        pieces = self._pod.open({**which, **self.mark.since}, _SILENCE if self.mark.first else idle)
        lines = lines_of(pieces, complete=self._has_ended)
        own = lines if self._is_previous else self._own(lines)
        return unread(own, self.mark, self._earlier, was_rotated=self._is_previous)

    def _own(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines of this run; its end may become known while they come, and is known to the second."""
        for line in lines:
            end = self._pod.end_of(self.number)
            if end and line.time and line.time[0] > end[0] + _DRAINING:
                raise Unanswered("the node shows the log of the container's next run")
            yield line

    @property
    def marks(self) -> list[Mark]:
        """How far this log and earlier ones were read; the kubelet keeps but two."""
        return [*self._earlier, self.mark][-4:]

    def is_over(self, error: ApiError | None) -> bool:
        if error:
            return not is_transient(error) or not self._pod.is_kept(self.number)
        # What began before the second of the run's end is its own; the next run begins later.
        self.is_unsure = self._end is not None and (self.mark.first or self._end)[0] >= self._end[0]
        return (self._has_ended and not self.is_unsure) or not self._pod.is_kept(self.number)
