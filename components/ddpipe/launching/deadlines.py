"""How long each state of a job may last, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpipe.jobs.job import Deadlines
from ddpipe.jobs.status import Stage

# After the job's end its pods' last states may still be on their way.
_SETTLING = 2.0
_LONGEST_WAIT = 60.0
_SHORTEST_WAIT = 0.02


@dataclass(slots=True)
class Limits:
    """The clocks of one job, in seconds of `time.monotonic`.

    Attributes:
        deadlines: What each stage may take.
    """

    deadlines: Deadlines
    _stage: Stage = Stage.RECONCILED
    _spent: float = 0
    _running: bool = False
    _ticked: float = 0
    _ended_since: float | None = None

    def exceeded(self, stage: Stage, now: float, *, running: bool) -> float | None:
        """The present stage's deadline, if it is over.

        Args:
            stage: The present stage; its clock begins when it does.
            now: The time.
            running: Whether the clock runs from now on: not while the job is suspended or cannot be seen.
        """
        if stage is not self._stage:
            self._stage, self._spent = stage, 0
        elif self._running:
            self._spent += now - self._ticked
        self._running, self._ticked = running, now
        limit = self._limit()
        return limit if limit is not None and self._spent > limit else None

    def has_settled(self, now: float) -> bool:
        """Whether a job that has ended can be judged though its pods' last states are not all in."""
        self._ended_since = self._ended_since or now
        return now - self._ended_since > _SETTLING

    def patience(self, now: float, others: Iterable[float] = ()) -> float:
        """Seconds until something could be too late, whatever is heard until then.

        Args:
            now: The time.
            others: Further moments that must not be missed.
        """
        waits = [_LONGEST_WAIT, *(moment - now for moment in others)]
        limit = self._limit()
        if limit is not None and self._running:
            waits.append(limit - self._spent)
        if self._ended_since is not None:
            waits.append(self._ended_since + _SETTLING - now)
        return max(_SHORTEST_WAIT, min(waits))

    def _limit(self) -> float | None:
        match self._stage:
            case Stage.RECONCILED:
                return self.deadlines.reconciled
            case Stage.SCHEDULED:
                return self.deadlines.scheduled
            case Stage.PULLED:
                return self.deadlines.pulled
            case Stage.RUNNING:
                return self.deadlines.running
            case Stage.FINISHED:
                return self.deadlines.finished
