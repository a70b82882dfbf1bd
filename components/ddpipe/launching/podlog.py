"""One pod's log: each run of its container to its end, one after the other, no line lost and none twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from threading import Condition, Thread

from ddpipe.jobs.status import Replica
from ddpipe.kube.cluster import ApiError, Query, Unanswered
from ddpipe.kube.retrying import is_transient, reconnected
from ddpipe.launching.loglines import Instant, Line, Mark, instant, lines_of, unread

TAIL = 20
"""Last lines that are kept of a log."""

# A node that cannot show logs is not asked by dozens of threads all the time.
_LONGEST_PAUSE = 30
# On a busy node a container's last lines get their times after its end; the next run begins after a second.
_DRAINING = 1

OpenLog = Callable[[Replica, Query], Iterator[bytes]]
"""Gives the bytes of a pod's log, with a time in front of each line."""

Take = Callable[[str, Line, deque[str]], None]
"""Receives a line: its rank, the line, and the last lines of the log, which it changes."""


class PodLog:
    """Reads one pod's log: each run of its container to its end, one after the other.

    The kubelet keeps the log of the present run and of the one before. Which these are may have changed since
    we looked: a log that was followed as one run's may be that of the next. So once a run is known to be
    over, its log is read from the start, and its first line's time shows whether it was read before.

    A container that has ended may start again at any moment: only a restart that we see, or the end of the
    pod, makes certain whose log we are shown.
    """

    def __init__(self, replica: Replica, open_log: OpenLog, take: Take) -> None:
        """Read in a thread of its own."""
        self._replica, self._open_log, self._take = replica, open_log, take
        self._gone = False
        self._earlier: list[Mark] = []
        self._changed = Condition()
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.lines = 0
        self._runs = 0
        self._run: _RunLog | None = None
        self.thread = Thread(target=self._read, name=f"log {replica.rank}", daemon=True)
        self.thread.start()

    @property
    def rank(self) -> str:
        """Whose log it is."""
        return self._replica.rank

    @property
    def is_behind(self) -> bool:
        """Whether the container has ended and its log is not read to the end."""
        run, present = self._run, self._replica.restarts
        if run and run.is_unsure and not self.is_certain(run.number):
            return False
        return self.has_ended(present) and self.thread.is_alive() and self._runs <= present

    def open(self, query: Query) -> Iterator[bytes]:
        """The container's log: what it shows at present."""
        return self._open_log(self._replica, query)

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
        ending = self._replica.ending
        return instant(ending.finished) if ending and not self.is_certain(run) else None

    def _has_begun(self, run: int) -> bool:
        replica = self._replica
        return replica.restarts > run or (replica.restarts == run and replica.has_begun)

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
        """Wait, but not beyond the end of the run: then its log has an end, too."""
        number, had_ended = run.number, self.has_ended(run.number)
        with self._changed:
            if run.is_unsure:
                self._changed.wait_for(partial(self.is_certain, number))
            else:
                self._changed.wait_for(lambda: not had_ended and self.has_ended(number), seconds)

    def _read_run(self, number: int) -> None:
        run = self._run = _RunLog(self, number, self._earlier)
        pause = partial(self._pause, run)
        for line in reconnected(run.read, run.is_over, pause, _LONGEST_PAUSE):
            self.lines += 1
            self._take(self.rank, line, self.tail)
        self._earlier = run.marks


class _RunLog:
    """The log of one run of a container: read to an end that came after the container's.

    Until then an end of the log may be only a cut.

    Attributes:
        number: Which run, from 0.
        mark: How far its log was read.
        is_unsure: Whether a log was read to an end that may be the next run's: no line shows whose it is.
    """

    def __init__(self, pod: PodLog, number: int, earlier: Iterable[Mark]) -> None:
        self._pod, self.number = pod, number
        self._earlier = list(earlier)
        self.mark = Mark()
        self.is_unsure = False
        self._has_ended = self._is_previous = False
        self._end: Instant | None = None

    def read(self) -> Iterator[Line]:
        """The lines that were not read yet, until the log ends or is cut."""
        self.is_unsure = False
        self._has_ended, self._end = self._pod.has_ended(self.number), self._pod.end_of(self.number)
        if self._pod.is_previous(self.number) and not self._is_previous:
            self._earlier.append(self.mark)
            self.mark, self._is_previous = Mark(), True
        which = {"previous": "true"} if self._is_previous else {} if self._end else {"follow": "true"}
        lines = lines_of(self._pod.open({**which, **self.mark.since}), complete=self._has_ended)
        own = _until(self._end, lines) if self._end else lines
        return unread(own, self.mark, self._earlier, was_rotated=self._is_previous)

    @property
    def marks(self) -> list[Mark]:
        """How far this log and earlier ones were read; the kubelet keeps but two."""
        return [*self._earlier, self.mark][-4:]

    def is_over(self, error: ApiError | None) -> bool:
        """Whether there is nothing more to read."""
        if error:
            return not is_transient(error) or not self._pod.is_kept(self.number)
        # What began before the second of the run's end is its own; the next run begins later.
        self.is_unsure = self._end is not None and (self.mark.first or self._end)[0] >= self._end[0]
        return (self._has_ended and not self.is_unsure) or not self._pod.is_kept(self.number)


def _until(end: Instant, lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of a run that ended at this time, which is known to the second."""
    for line in lines:
        if line.time and line.time[0] > end[0] + _DRAINING:
            raise Unanswered("the node shows the log of the container's next run")
        yield line
