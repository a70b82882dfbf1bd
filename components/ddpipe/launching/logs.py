"""All ranks' logs as prefixed lines, none lost and none twice.

Each pod has a thread of its own, so that a slow log never holds up the watching of the job. A log that was
cut is asked for again from the second of the last line (the API knows no finer); lines seen are skipped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Condition, Thread
from time import monotonic

from ddpipe.jobs.status import Replica, Stage
from ddpipe.kube.api import ApiError, Cluster, Query
from ddpipe.kube.retrying import backoff, is_transient

# After so much silence a log is asked for anew; training may well say nothing for minutes.
_SILENCE = 1800
_TAIL = 20
# A node that cannot show logs is not asked by hundreds of readers all the time.
_LONGEST_PAUSE = 30
_METRIC = re.compile(r"\b([a-z][a-z0-9_/]*)\s*[=: ]\s*(-?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?)(?![\w.-])")
_PROGRESS = re.compile(r"\b(epoch|step)\b.*loss")


def metrics_of(line: str) -> dict[str, float]:
    """The numbers of a progress line ("epoch 3 loss=0.52"): it names an epoch or step, and a loss."""
    lowered = line.lower()
    if not _PROGRESS.search(lowered):
        return {}
    return {name: float(value) for name, value in _METRIC.findall(lowered)}


@dataclass(slots=True)
class Position:
    """How far a log was read: times of the first and the last line, and how many lines have just the last."""

    first: str = ""
    time: str = ""
    lines: int = 0

    @property
    def since(self) -> dict[str, str]:
        """The selection of what follows, as fine as the API can."""
        return {"sinceTime": f"{self.time[:19]}Z"} if self.time else {}

    def is_before(self, other: Position) -> bool:
        """Whether reading stands at an earlier line than `other`."""
        return (_sortable(self.time), self.lines) < (_sortable(other.time), other.lines)

    def covers(self, other: Position) -> bool:
        """Whether the line at which `other` stands is one of those that were read."""
        return (
            bool(self.time) and _sortable(self.first) <= _sortable(other.time) and not self.is_before(other)
        )


def fresh(lines: Iterable[bytes], position: Position, earlier: Sequence[Position] = ()) -> Iterator[str]:
    """The lines after `position`, which moves along, but for those that were read `earlier`.

    Args:
        lines: Each with its time in front (RFC 3339, UTC, nanoseconds), in the order of writing.
        position: Changed: where reading stands after each line.
        earlier: What was read of other logs of the same container.
    """
    now = Position()
    for line in lines:
        time, _, text = line.decode(errors="replace").partition(" ")
        now = Position(time, time, now.lines + 1 if time == now.time else 1)
        if position.is_before(now):
            position.first, position.time, position.lines = position.first or time, now.time, now.lines
            if not any(one.covers(now) for one in earlier):
                yield text


def _sortable(time: str) -> str:
    """Zeros at the end of the fraction are left out by the API: "05.1Z" is later than "05.09Z"."""
    whole, _, fraction = time.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}" if time else ""


class _Reader:
    """Reads one pod's log: each run of its container to its end, one after the other.

    The kubelet keeps the log of the present run and of the one before. Which these are may have changed since
    we looked: a log that was followed as one run's may be that of the next. So once a run is known to be
    over, its log is read from the start, and the lines' times tell which were seen, in whichever log.
    """

    def __init__(self, logs: Logs, replica: Replica) -> None:
        self._logs = logs
        self._replica: Replica = replica
        self._gone = False
        self._earlier: list[Position] = []
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

    def see(self, replica: Replica | None) -> None:
        """Take notice of the pod's present state; None when it is gone."""
        with self._changed:
            self._replica, self._gone = replica or self._replica, replica is None
            self._changed.notify_all()

    def _read(self) -> None:
        for run in count():
            self._await(partial(self._has_begun, run))
            if not self._has_begun(run):
                return
            if self._is_kept(run):
                self._read_run(run)
            self._runs = run + 1

    @property
    def is_behind(self) -> bool:
        """Whether the container has ended and its log is not read to the end."""
        ended = self._has_ended(self._replica.restarts)
        return ended and self.thread.is_alive() and self._runs <= self._replica.restarts

    def _is_kept(self, run: int) -> bool:
        return self._replica.restarts <= run + 1

    def _has_begun(self, run: int) -> bool:
        replica = self._replica
        return replica.restarts > run or (replica.restarts == run and replica.has_begun)

    def _has_ended(self, run: int) -> bool:
        replica = self._replica
        return self._gone or replica.over or replica.restarts > run or replica.ending is not None

    def _await(self, happened: Callable[[], bool], seconds: float | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: happened() or self._gone or self._replica.over, seconds)

    def _read_run(self, run: int) -> None:
        """Read to an end that came after the container's: until then an end of the log may be only a cut."""
        position, is_previous, wait = Position(), False, backoff(_LONGEST_PAUSE)
        while self._is_kept(run):
            ended = self._has_ended(run)
            if self._replica.restarts > run and not is_previous:
                self._earlier.append(position)
                position, is_previous = Position(), True
            try:
                log = self._open(position, is_previous=is_previous)
                for text in fresh(log, position, self._earlier):
                    self._logs.take(self._replica.rank, text, self.tail)
                    self.lines += 1
                    wait = backoff(_LONGEST_PAUSE)
            except ApiError as error:
                if not is_transient(error):
                    break
                ended = False
            if ended:
                break
            self._await(partial(self._has_ended, run), next(wait))
        self._earlier.append(position)

    def _open(self, position: Position, *, is_previous: bool) -> Iterator[bytes]:
        query: Query = {
            "container": self._replica.container,
            "timestamps": "true",
            **({"previous": "true"} if is_previous else {"follow": "true"}),
            **position.since,
        }
        return self._logs.cluster.lines(f"{self._logs.pods}/{self._replica.pod}/log", query, _SILENCE)


class Logs:
    """The logs of a job.

    Attributes:
        cluster: Where they are read.
        pods: The path of the namespace's pods.
        metrics: The numbers of the last progress line.
    """

    def __init__(self, cluster: Cluster, pods: str, pass_on: Callable[[str], None]) -> None:
        self.cluster, self.pods = cluster, pods
        self.metrics: dict[str, float] = {}
        self._pass_on = pass_on
        self._readers: dict[str, _Reader] = {}

    def see(self, replicas: Iterable[Replica]) -> None:
        """Follow these pods; those not among them any more are gone."""
        present = {replica.uid: replica for replica in replicas}
        for uid, reader in self._readers.items():
            reader.see(present.get(uid))
        for uid, replica in present.items():
            if uid not in self._readers and replica.stage is Stage.FINISHED:
                self._readers[uid] = _Reader(self, replica)

    def take(self, rank: str, text: str, tail: deque[str]) -> None:
        """Pass one line on, and remember what may be needed of it."""
        tail.append(text)
        self.metrics.update(metrics_of(text))
        self._pass_on(f"[{rank}] {text}")

    def tail(self, uid: str) -> tuple[str, ...]:
        """The last lines of a pod's log."""
        reader = self._readers.get(uid)
        return tuple(reader.tail) if reader else ()

    def finish(self, silence: float = 5) -> tuple[str, ...]:
        """Wait for the logs of all pods that have ended, as long as lines come within `silence` seconds.

        Returns:
            The ranks whose log was not read to its end.
        """
        read, until = -1, 0.0
        while behind := [reader for reader in self._readers.values() if reader.is_behind]:
            lines = sum(reader.lines for reader in behind)
            if lines != read:
                read, until = lines, monotonic() + silence
            if monotonic() > until:
                break
            behind[0].thread.join(0.05)
        return tuple(reader.rank for reader in behind)
