"""Notice that a script does not print any more: it may hang.

Own training finds a rank that hangs by itself. Of any other script only its lines show that it works:

    10:00:00    worker-0 prints its first line, then one every 10 s, once after 25 s
    10:30:00    its last line
    10:34:10    ten times its longest pause is over: a warning, once
    11:30:00    `silence=3600` in `deadlines` is over: the job ends, if its logs hold no newer line either

The last condition matters: a connection can be dead without a sign, and lines then wait at the node.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

_TIMES = 10
_SHORTEST = 60.0
# So many lines show how long a rank pauses.
_ENOUGH = 10
_MOST_NAMED = 3


@dataclass(slots=True)
class _Pauses:
    last: float
    lines: int = 1
    longest: float = 0
    is_reported: bool = False

    @property
    def ends(self) -> float:
        """When a silence is longer than any before; never, if too little is known."""
        return self.last + max(_SHORTEST, _TIMES * self.longest) if self.lines >= _ENOUGH else math.inf


@dataclass(slots=True)
class Silence:
    """When each rank has printed. Each is told of by a thread of its own, in seconds of a monotonic clock."""

    _ranks: dict[str, _Pauses] = field(default_factory=dict)
    _since: float = math.inf

    def take(self, rank: str, now: float) -> None:
        """A rank has printed a line."""
        pauses = self._ranks.get(rank)
        if pauses is None:
            self._ranks[rank] = _Pauses(now)
            return
        pauses.longest = max(pauses.longest, now - pauses.last)
        pauses.last, pauses.is_reported = now, False
        pauses.lines += 1

    def warning(self, running: Collection[str], now: float) -> str:
        """Which running ranks are silent for much longer than ever; empty if all of them were reported."""
        silent = {rank: pauses for rank, pauses in self._ranks.copy().items() if pauses.ends < now}
        new = [rank for rank in silent if rank in running and not silent[rank].is_reported]
        if not new:
            return ""
        for rank in new:
            silent[rank].is_reported = True
        first = silent[new[0]]
        named = ", ".join(new[:_MOST_NAMED])
        if more := len(new) - len(new[:_MOST_NAMED]):
            named += f" and {more} more"
        return (
            f"{named} printed nothing for {now - first.last:.0f} s, before never for "
            f"more than {first.longest:.0f} s: it may hang; `silence` in `deadlines` ends such a job"
        )

    def begin(self, now: float) -> None:
        """Let what was before not count: the job did not run, or its server did not answer."""
        self._since = now

    @property
    def since(self) -> float:
        """When the last line of any rank came, or the job began to run; never, before that."""
        return max((self._since, *(one.last for one in self._ranks.copy().values())))
