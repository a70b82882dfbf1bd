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
from time import monotonic, sleep
from typing import Any

from ddpipe.jobs.rank_selection import RankSelection
from ddpipe.jobs.status import Replica, Stage
from ddpipe.kube.cluster import ApiError, Cluster, Query
from ddpipe.kube.retrying import Turns, is_transient, reconnected
from ddpipe.launching.loglines import Line, Mark, lines_of, metrics_of, unread
from ddpipe.spelling import option

# After so much silence a log is requested again; training may well write nothing for minutes.
_SILENCE = 1800
_TAIL = 20
# A node that cannot show logs is not asked by dozens of threads all the time.
_LONGEST_PAUSE = 30
# Open connections: a process may have 1,024 files open, and a person reads fewer logs than this.
MOST_FOLLOWED = 64
# So many logs are opened at once, then so many per second: when 64 pods start, each has a log to open, and
# where nodes cannot show logs, each is requested again and again.
_OPENED_AT_ONCE, _OPENED_PER_SECOND = 10, 3.0
# Failed ranks whose last lines are read: many fail for the reason of the first.
MOST_FAILED = 16
_LAST_LINES, _ATTEMPTS = 100, 10
# Pods whose last lines are kept, those that are gone included.
_MOST_KEPT = 256
# Names come from the training's own lines.
_MOST_METRICS = 100


class Logs:
    """The logs of a job.

    Attributes:
        cluster: Where they are read.
        pods: The path of the namespace's pods.
        metrics: The latest number of each name in progress lines.
        turns: Of the logs that are opened to be followed.
    """

    def __init__(
        self,
        cluster: Cluster,
        pods: str,
        write: Callable[[str], None],
        *,
        ranks: RankSelection = RankSelection(),  # noqa: B008 - a constant
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Logs that are not read yet.

        Args:
            cluster: Where they are read.
            pods: The path of the namespace's pods.
            write: Receives their lines, each with its rank in front; may block.
            ranks: Which are followed.
            say: Receives our own remarks.
        """
        self.cluster, self.pods = cluster, pods
        self.metrics: dict[str, float] = {}
        self._write, self._ranks, self._say = write, ranks, say
        self._followed: dict[str, _PodLog] = {}
        self._failed: dict[str, _LastLines] = {}
        self._has_master = self._is_limited = False
        self.turns = Turns(_OPENED_AT_ONCE, _OPENED_PER_SECOND)

    def see(self, replicas: Iterable[Replica]) -> None:
        """Follow these pods' logs as far as they are chosen; pods no longer among them are gone."""
        present = {replica.uid: replica for replica in replicas}
        for uid, log in self._followed.items():
            log.see(present.get(uid))
        self._has_master |= any(replica.rank.startswith("master-") for replica in present.values())
        running = sum(log.thread.is_alive() for log in self._followed.values())
        for uid, replica in present.items():
            if uid in self._followed or replica.stage is not Stage.FINISHED:
                continue
            if self._is_chosen(replica) and running < MOST_FOLLOWED and uid not in self._failed:
                self._followed[uid] = _PodLog(self, replica)
                running += 1
                continue
            if self._is_chosen(replica) and not self._is_limited:
                self._is_limited = True
                self._say(
                    f"following the logs of {MOST_FOLLOWED} pods, of the others only those that fail; "
                    f"choose others with {option('logs')} 0,5-7"
                )
            self._read_if_failed(replica, present)
        _forget(self._followed, present, _MOST_KEPT)
        _forget(self._failed, present, _MOST_KEPT)

    def take(self, rank: str, line: Line, tail: deque[str]) -> None:
        """Write one line, and keep what may be needed of it.

        Args:
            rank: Prefix of the line.
            line: Its metrics replace earlier values; an unfinished one is written, but not kept in `tail`.
            tail: Last lines of the pod's log; changed in place.
        """
        if line.finished:
            tail.append(line.text)
        for name, value in metrics_of(line.text).items():
            if name in self.metrics or len(self.metrics) < _MOST_METRICS:
                self.metrics[name] = value
        self._write(f"[{rank}] {line.text}")

    def tail(self, uid: str) -> tuple[str, ...]:
        """The last lines of a pod's log."""
        reader = self._followed.get(uid) or self._failed.get(uid)
        return tuple(reader.tail) if reader else ()

    def finish(self, silence: float = 5) -> tuple[str, ...]:
        """Wait for the logs of all pods that have ended, as long as lines come within `silence` seconds.

        Returns:
            The ranks whose log was not read to its end.
        """
        readers: list[_PodLog | _LastLines] = [*self._followed.values(), *self._failed.values()]
        read, until = -1, 0.0
        while behind := [reader for reader in readers if reader.is_behind]:
            lines = sum(reader.lines for reader in behind)
            if lines != read:
                read, until = lines, monotonic() + silence
            if monotonic() > until:
                break
            behind[0].thread.join(0.05)
        return tuple(reader.rank for reader in behind)

    def _is_chosen(self, replica: Replica) -> bool:
        """Whether the pod's number is chosen: a master is 0, and the workers follow it."""
        role, _, index = replica.rank.rpartition("-")
        number = int(index) if index.isdecimal() else 0
        return number + (self._has_master and role != "master") in self._ranks

    def _read_if_failed(self, replica: Replica, present: Collection[str]) -> None:
        before = self._failed.get(replica.uid)
        if replica.failure is None or (before and before.restarts == replica.restarts):
            return
        if before or sum(uid in present for uid in self._failed) < MOST_FAILED:
            self._failed[replica.uid] = _LastLines(self, replica)


def _forget(readers: dict[str, Any], present: Collection[str], most: int) -> None:
    """Forget the oldest logs of pods that are gone: a job may replace its pods for weeks."""
    done = (uid for uid, reader in readers.items() if uid not in present and not reader.thread.is_alive())
    for uid in list(islice(done, max(0, len(readers) - most))):
        del readers[uid]


class _PodLog:
    """Reads one pod's log: each run of its container to its end, one after the other.

    The kubelet keeps the log of the present run and of the one before. Which these are may have changed since
    we looked: a log that was followed as one run's may be that of the next. So once a run is known to be
    over, its log is read from the start, and its first line's time shows whether it was read before.
    """

    def __init__(self, logs: Logs, replica: Replica) -> None:
        self._logs = logs
        self._replica: Replica = replica
        self._gone = False
        self._earlier: list[Mark] = []
        self._changed = Condition()
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.lines = 0
        self._runs = 0
        self.thread = Thread(target=self._read, name=f"log {replica.rank}", daemon=True)
        self.thread.start()

    @property
    def rank(self) -> str:
        """Whose log it is."""
        return self._replica.rank

    @property
    def is_behind(self) -> bool:
        """Whether the container has ended and its log is not read to the end."""
        ended = self.has_ended(self._replica.restarts)
        return ended and self.thread.is_alive() and self._runs <= self._replica.restarts

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
        replica = self._replica
        return self._gone or replica.over or replica.restarts > run or replica.ending is not None

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

    def _pause(self, run: int, seconds: float) -> None:
        """Wait, but not beyond the end of the run: then its log has an end, too."""
        had_ended = self.has_ended(run)
        with self._changed:
            self._changed.wait_for(lambda: not had_ended and self.has_ended(run), seconds)

    def _read_run(self, number: int) -> None:
        run = _RunLog(self, number, self._earlier)
        pause = partial(self._pause, number)
        for line in reconnected(lambda: run.read(self._log), run.is_over, pause, _LONGEST_PAUSE):
            self.lines += 1
            self._logs.take(self.rank, line, self.tail)
        self._earlier = run.marks

    def _log(self, query: Query) -> Iterator[bytes]:
        self._logs.turns.take()
        path = f"{self._logs.pods}/{self._replica.pod}/log"
        return self._logs.cluster.pieces(path, {"container": self._replica.container, **query}, _SILENCE)


class _RunLog:
    """The log of one run of a container: read to an end that came after the container's.

    Until then an end of the log may be only a cut.
    """

    def __init__(self, pod: _PodLog, number: int, earlier: Iterable[Mark]) -> None:
        self._pod, self._number = pod, number
        self._earlier = list(earlier)
        self.mark = Mark()
        self._has_ended = self._is_previous = False

    def read(self, log: Callable[[Query], Iterator[bytes]]) -> Iterator[Line]:
        """The lines that were not read yet, until the log ends or is cut."""
        self._has_ended = self._pod.has_ended(self._number)
        if self._pod.is_previous(self._number) and not self._is_previous:
            self._earlier.append(self.mark)
            self.mark, self._is_previous = Mark(), True
        which = {"previous": "true"} if self._is_previous else {"follow": "true"}
        lines = lines_of(log({"timestamps": "true", **which, **self.mark.since}), complete=self._has_ended)
        return unread(lines, self.mark, self._earlier, was_rotated=self._is_previous)

    @property
    def marks(self) -> list[Mark]:
        """How far this log and earlier ones were read; the kubelet keeps but two."""
        return [*self._earlier, self.mark][-4:]

    def is_over(self, error: ApiError | None) -> bool:
        """Whether there is nothing more to read."""
        if error is None:
            return self._has_ended or not self._pod.is_kept(self._number)
        return not is_transient(error) or not self._pod.is_kept(self._number)


class _LastLines:
    """The last lines of a container that failed and whose log nobody followed."""

    def __init__(self, logs: Logs, replica: Replica) -> None:
        self._logs = logs
        self._replica = replica
        self.rank, self.restarts = replica.rank, replica.restarts
        self.tail: deque[str] = deque(maxlen=_TAIL)
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
            self._logs.take(self.rank, line, self.tail)

    def _open(self) -> Iterator[Line]:
        """Read whole before any line is written: an attempt that is cut writes nothing."""
        replica = self._replica
        restarted = {"previous": "true"} if replica.ending is None else {}
        query = {
            "container": replica.container,
            "timestamps": "true",
            "tailLines": str(_LAST_LINES),
            **restarted,
        }
        pieces = self._logs.cluster.pieces(f"{self._logs.pods}/{replica.pod}/log", query, _SILENCE)
        return iter(list(lines_of(pieces, complete=True)))

    def _is_over(self, error: ApiError | None) -> bool:
        return error is None or not is_transient(error) or next(self._attempts) == _ATTEMPTS
