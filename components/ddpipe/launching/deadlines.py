"""How long each stage of a job may last, by clocks that stand still while the job is suspended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddpipe.jobs.options import Deadlines
from ddpipe.jobs.status import Replica, Stage

# After the job's end, the last states of its pods may arrive later.
_SETTLING = 2.0
# After an outage the watches reconnect one by one, within the longest pause between two attempts (5 s).
_RECONNECTING = 12.0
_LONGEST_WAIT = 60.0
_SHORTEST_WAIT = 0.02


def ran_since(replicas: Sequence[Replica]) -> float:
    """Since when all pods of a job have run, in seconds since 1970, as its pods show it.

    A launcher that adopts a job did not see its start. The pods of a job are created together: one that was
    created after another had begun took the place of a lost pod, and does not show when the job began:

        worker-0    created 10:00:00    began 10:02:00
        worker-1    created 10:00:00    began 10:05:00    the last of the first pods: since 10:05:00
        worker-2    created 14:00:00    began 14:00:20    replaced a lost pod
    """
    begun = [replica for replica in replicas if replica.began]
    first = min((replica.began for replica in begun), default=math.inf)
    return max((replica.began for replica in begun if replica.created <= first), default=first)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A deadline that is over: a stage has lasted longer than so many seconds."""

    stage: Stage
    limit: float


@dataclass(slots=True)
class Limits:
    """The clocks of one job, in seconds of a clock that never goes back; none counts during suspension.

    `finished` begins when all pods run for the first time, also while a lost pod is replaced:

        0:00  pods are scheduled, images are pulled
        0:10  all run                               `finished` begins
        0:40  one is lost: scheduled again          `scheduled` begins, `finished` continues
        0:45  all run
        1:10  `finished=3600` is over               an hour after 0:10
    """

    deadlines: Deadlines
    worked: float = 0  # for so long the job has worked, in earlier jobs of this launch too
    _has_worked: bool = False
    _stage: Stage = Stage.RECONCILED
    _spent: float = 0
    _running: bool = False
    _ticked: float = 0
    _ended_since: float | None = None
    _settling: float = _SETTLING

    def exceeded(self, stage: Stage, now: float, *, running: bool) -> Overdue | None:
        """The deadline that is over, if one is."""
        passed = now - self._ticked if self._running else 0
        self.worked += passed if self._has_worked else 0
        self._spent = self._spent + passed if stage is self._stage else 0
        self._stage = stage
        self._has_worked = self._has_worked or stage is Stage.FINISHED
        self._running, self._ticked = running, now
        return next((clock for clock, left in self._clocks() if left < 0), None)

    def has_settled(self, now: float, *, reconnecting: bool = False) -> bool:
        """Whether a job that has ended can be judged although the last states of some pods are unknown."""
        self._ended_since = now if self._ended_since is None else self._ended_since
        self._settling = _RECONNECTING if reconnecting else _SETTLING
        return now - self._ended_since > self._settling

    def patience(self, now: float, others: Iterable[float] = ()) -> float:
        """Seconds until the next look is due, even if nothing changes until then."""
        waits = [_LONGEST_WAIT, *(moment - now for moment in others)]
        if self._running:
            waits += [left for _, left in self._clocks()]
        if self._ended_since is not None:
            waits.append(self._ended_since + self._settling - now)
        return max(_SHORTEST_WAIT, min(waits))

    def _clocks(self) -> Iterator[tuple[Overdue, float]]:
        """The deadlines that count now, and the seconds that are left of each."""
        if self._stage is not Stage.FINISHED:
            limit: float = getattr(self.deadlines, self._stage.name.lower())
            yield Overdue(self._stage, limit), limit - self._spent
        if self._has_worked and self.deadlines.finished is not None:
            yield Overdue(Stage.FINISHED, self.deadlines.finished), self.deadlines.finished - self.worked
