"""What a launcher prints while it follows a job: a few lines, however many pods there are.

Four kinds of lines, each with its own bound:

    pulling images: 512 of 512 pods (worker-3: ContainerCreating)     how far the job is
    2 pods failed (worker-17 on n18, worker-40 on n41): exit code 3   at once; pods with one end are one line
    progress=0.42 step=420 seconds_left=580 loss=0.52                 once a minute, if the training says so
    worker-0 printed nothing for 251 s, before never for more than …  once per silence

`Output` writes them in the background, so that a slow reader never blocks the launch protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Full, Queue
from threading import Event, Thread
from typing import TextIO

from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.status import JobStatus, Phase, Replica, Stage
from ddpipe.launching import diagnosis
from ddpipe.processes.reports import Reports

# So many lines about the status may be printed at once, then one in so many seconds. While 512 pods start,
# each of them changes the line: the last few lines are kept for what is new, the beginning of a stage.
_BURST, _RESERVED, _SECONDS_PER_LINE = 10, 4, 10.0
# Failures are collected for so long after a line about failures; longer if there are ever more.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_MINUTE = 60.0
# A rank that prints nothing for so many times its longest pause, and at least a minute, may hang.
_UNUSUAL = 10
# So many lines show how long a rank pauses.
_ENOUGH_LINES = 10
_MOST_NAMED = 3

_WORDS = {
    Stage.RECONCILED: "waiting for the operator",
    Stage.SCHEDULED: "waiting for nodes",
    Stage.PULLED: "pulling images",
    Stage.RUNNING: "starting containers",
    Stage.FINISHED: "running",
}
MOST_LINES = 2000  # lines that wait for a slow reader: of at most 4 KiB each, so 8 MB


class Progress:
    """Reports how one job is doing."""

    def __init__(self, job: TrainingJob, say: Callable[[str], None], reports: Reports) -> None:
        self._parts = (_StatusLine(job, say), _Failures(say), _Minutes(reports, say))

    @property
    def next(self) -> tuple[float, ...]:
        """When lines are due that are not printed yet."""
        return tuple(part.next for part in self._parts if part.next is not None)

    def report(self, status: JobStatus, now: float) -> None:
        """Print what is new."""
        for part in self._parts:
            part.report(status, now)


def status_line(job: TrainingJob, status: JobStatus) -> str:
    """How far a job is, in one line."""
    if status.phase is Phase.SUSPENDED:
        return "suspended: waiting for its queue, or for somebody to resume it"
    counts = {
        "ended": sum(replica.over for replica in status.replicas),
        "terminating": sum(replica.is_terminating for replica in status.replicas),
        "restarts": status.restarts,
    }
    details = "".join(f", {count} {name}" for name, count in counts.items() if count)
    waiting = next((replica for replica in status.replicas if replica.waiting), None)
    example = f" ({waiting.rank}: {waiting.waiting})" if waiting else ""
    pods = len(status.replicas)  # of a search more than at the same time: those of earlier trials are there
    return f"{_WORDS[status.stage]}: {pods} of {max(pods, job.nodes)} pods{details}{example}"


@dataclass(slots=True)
class _StatusLine:
    job: TrainingJob
    say: Callable[[str], None]
    next: float | None = None
    _text: str = ""
    _state: tuple[Phase, Stage] | None = None
    _lines: float = _BURST
    _at: float | None = None

    def report(self, status: JobStatus, now: float) -> None:
        text, state = status_line(self.job, status), (status.phase, status.stage)
        passed = 0 if self._at is None else now - self._at
        self._lines = min(_BURST, self._lines + passed / _SECONDS_PER_LINE)
        self._at, self.next = now, None
        if text == self._text:
            return
        needed = 1 if state != self._state else 1 + _RESERVED
        if self._lines < needed:
            self.next = now + (needed - self._lines) * _SECONDS_PER_LINE
            return
        self._text, self._state = text, state
        self._lines -= 1
        self.say(text)


class _Failures:
    """Reports pods that failed or were removed, once each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.next: float | None = None
        self._say = say
        self._known: dict[str, tuple[int, bool]] = {}
        self._new: dict[str, Replica] = {}
        self._pause, self._last = _SHORTEST_PAUSE, float("-inf")

    def report(self, status: JobStatus, now: float) -> None:
        if status.phase is Phase.SUSPENDED:
            self._new.clear()
        else:
            # Once a job has ended, its operator removes the pods that are left.
            active, known = status.phase is Phase.ACTIVE, {}
            for replica in status.replicas:
                if replica.failure or (active and replica.removed):
                    # A container that was restarted shows the failure of the run before.
                    run = replica.restarts if replica.ending else replica.restarts - 1
                    known[replica.uid] = run, bool(replica.removed)
                    if self._known.get(replica.uid) != known[replica.uid]:
                        self._new[replica.uid] = replica
            self._known = known
        self.next = self._last + self._pause if self._new else None
        if self._new and now >= self._last + self._pause:
            # The pause grows while failures keep coming, and is short again after a quiet time.
            is_busy = now - self._last < 2 * _LONGEST_PAUSE
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause) if is_busy else _SHORTEST_PAUSE
            self._say("; ".join(diagnosis.summaries(self._new.values(), "failed", "failed", on_nodes=True)))
            self._new.clear()
            self._last, self.next = now, None


@dataclass(slots=True)
class _Minutes:
    """Reports how far the training is, every minute if it has come further."""

    reports: Reports
    say: Callable[[str], None]
    next: float | None = None
    _line: str = ""

    def report(self, status: JobStatus, now: float) -> None:
        if status.phase is not Phase.ACTIVE or status.stage is not Stage.FINISHED:
            self.next = None
        elif self.next is None or now >= self.next:
            reported = self.reports.now(time.time())
            if self.next is not None and reported.percent is not None and reported.line != self._line:
                self._line = reported.line
                self.say(self._line)
            self.next = now + _MINUTE


@dataclass(slots=True)
class _Pauses:
    last: float
    lines: int = 0
    longest: float = 0
    is_reported: bool = False

    @property
    def ends(self) -> float:
        """When a silence is longer than any before; never, if too little is known."""
        return self.last + max(_MINUTE, _UNUSUAL * self.longest) if self.lines >= _ENOUGH_LINES else math.inf


@dataclass(slots=True)
class Silence:
    """Whether ranks print no more: of a script without ddpipe, nothing else shows a hang.

        10:00:00    worker-0 prints its first line, then one every 10 s, once after 25 s
        10:30:00    its last line
        10:34:10    ten times its longest pause is over: a warning, once
        11:30:00    `silence=3600` in `deadlines` is over: the job ends, if its logs hold no newer line either

    The last condition matters: a connection can be dead without a sign, and lines then wait at the node. The
    thread of each rank's log reports its lines, at seconds of a monotonic clock.
    """

    _ranks: dict[str, _Pauses] = field(default_factory=dict)
    _since: float = math.inf

    def take(self, rank: str, now: float) -> None:
        """A rank has printed a line."""
        pauses = self._ranks.setdefault(rank, _Pauses(now))
        pauses.longest = max(pauses.longest, now - pauses.last)
        pauses.last, pauses.is_reported = now, False
        pauses.lines += 1

    def warning(self, running: Collection[str], now: float, used: Callable[[str], str] = lambda _: "") -> str:
        """Which running ranks, and what they use, are silent for much longer than ever; each once."""
        silent = {rank: pauses for rank, pauses in self._ranks.copy().items() if pauses.ends < now}
        new = [rank for rank in silent if rank in running and not silent[rank].is_reported]
        if not new:
            return ""
        for rank in new:
            silent[rank].is_reported = True
        first = silent[new[0]]
        named = ", ".join(rank + used(rank) for rank in new[:_MOST_NAMED])
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
    def last(self) -> float:
        """When the last line of any rank came; never, before that."""
        return max((one.last for one in self._ranks.copy().values()), default=-math.inf)

    @property
    def since(self) -> float:
        """When the last line of any rank came, or the job began to run; never, before that."""
        return max(self._since, self.last)


class Output:
    """A bounded queue of lines, written by a thread of its own; those for a closed stream are dropped."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lines: Queue[str | Event] = Queue(maxsize=MOST_LINES)
        self._taken = 0
        Thread(target=self._write, name="output", daemon=True).start()

    def log(self, line: str) -> None:
        """Write a line of a training log; blocks while the queue is full."""
        self._lines.put(line)

    def say(self, line: str) -> None:
        """Write a line of the launcher's own; it is dropped while the queue is full."""
        with suppress(Full):
            self._lines.put_nowait(f"[launch] {line}")

    def finish(self, silence: float = 2) -> None:
        """Wait until all lines are written, as long as the reader takes one within `silence` seconds."""
        written, queued, before = Event(), False, -1
        while before != self._taken:
            before = self._taken
            with suppress(Full):
                if not queued:
                    self._lines.put(written, timeout=silence)
                    queued = True
                if written.wait(silence):
                    return

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            self._taken += 1
            with suppress(OSError, ValueError):
                if isinstance(line, str):
                    self._out.write(line + "\n")
                if isinstance(line, Event) or self._lines.empty():
                    self._out.flush()
            if isinstance(line, Event):
                line.set()
