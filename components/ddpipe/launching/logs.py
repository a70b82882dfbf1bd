"""The ranks' logs as prefixed lines: none lost, none twice, over a bounded number of connections.

The logs of the chosen ranks are followed, each by a thread of its own, so that a slow log never delays the
watching of the job. Of the others the last lines are read once a container has failed. A log that was cut is
requested again from the second of the last line (the API knows no finer); lines seen are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, islice
from threading import Thread
from time import monotonic, sleep
from typing import Any

from ddpipe.jobs.rank_selection import RankSelection
from ddpipe.jobs.status import Replica, Stage
from ddpipe.kube.cluster import ApiError, Cluster, Query
from ddpipe.kube.retrying import RateLimiter, is_transient, reconnected
from ddpipe.launching.loglines import Line, lines_of, metrics_of
from ddpipe.launching.podlog import TAIL, OpenLog, PodLog, Take

# After so much silence a log is requested again; training may well write nothing for minutes.
_SILENCE = 1800
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
        limiter: Of the logs that are opened to be followed.
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
        """Logs that are not read yet."""
        self.cluster, self.pods = cluster, pods
        self.metrics: dict[str, float] = {}
        self._write, self._ranks, self._say = write, ranks, say
        self._followed: dict[str, PodLog] = {}
        self._failed: dict[str, _LastLines] = {}
        self._has_master = self._is_limited = False
        self.limiter = RateLimiter(_OPENED_AT_ONCE, _OPENED_PER_SECOND)

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
                self._followed[uid] = PodLog(replica, self._in_turn, self.take)
                running += 1
                continue
            if self._is_chosen(replica) and not self._is_limited:
                self._is_limited = True
                self._say(
                    f"following the logs of {MOST_FOLLOWED} pods, of the others only those that fail; "
                    f"choose others with `logs` 0,5-7"
                )
            self._read_if_failed(replica, present)
        _forget(self._followed, present, _MOST_KEPT)
        _forget(self._failed, present, _MOST_KEPT)

    def take(self, rank: str, line: Line, tail: deque[str]) -> None:
        """Write one line, and keep what may be needed of it."""
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

    def _in_turn(self, replica: Replica, query: Query) -> Iterator[bytes]:
        self.limiter.wait()
        return self._pieces(replica, query)

    def _pieces(self, replica: Replica, query: Query) -> Iterator[bytes]:
        query = {"container": replica.container, "timestamps": "true", **query}
        return self.cluster.pieces(f"{self.pods}/{replica.pod}/log", query, _SILENCE)

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
            self._failed[replica.uid] = _LastLines(replica, self._pieces, self.take)


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
        pieces = self._open_log(self._replica, {"tailLines": str(_LAST_LINES), **which})
        return iter(list(lines_of(pieces, complete=True)))

    def _is_over(self, error: ApiError | None) -> bool:
        return error is None or not is_transient(error) or next(self._attempts) == _ATTEMPTS
