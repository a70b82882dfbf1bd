r"""What a container's log says: bounded lines, each once. Pure functions of the bytes that the API sends.

A progress bar rewrites its line: a carriage return and the new state, ten times a second, until the epoch
ends, which may be hours later. To the API all of that is one line of many megabytes:

    2026-01-01T00:00:00.1Z \r 1%|   | 1/100\r 2%|   | 2/100 ... \r100%|###| 100/100\n

So a line is here what a terminal shows of it: the last state. Meanwhile its present state comes out at
growing intervals, up to half a minute: something is seen of a bar that stops early. However long a line is,
and in however small pieces it comes, a bounded part of it is kept and every byte is looked at once: this code
shares the interpreter with the thread that deletes the job when the step is terminated, half a second before
it is killed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, repeat

LONGEST = 4096  # bytes shown of a line: of a longer one the beginning and the end
STATE_SECONDS = 30.0  # so often the present state of an unfinished line comes out, in the end
_FIRST_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)

Instant = tuple[int, int]  # seconds since 1970, and nanoseconds
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_STAMP_SIZE = 40
# What a node sends in place of a log that it cannot read.
_KUBELETS_OWN = re.compile("unable to retrieve container logs for |failed to try resolving symlinks in path ")


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of a log shows."""

    time: Instant | None  # when it was begun; the kubelet's own error messages have none
    text: str
    finished: bool = True  # not a state of a line that is being written


def instant(stamp: str) -> Instant | None:
    """The time of a line as RFC 3339, of any precision and time zone; None if it is no time."""
    match = _STAMP.fullmatch(stamp)
    if not match:
        return None
    whole, fraction, zone = match.groups()
    try:
        seconds = int(datetime.fromisoformat(whole + zone).timestamp())
    except ValueError:
        return None
    return seconds, int((fraction or "").ljust(9, "0"))


def lines_of(
    pieces: Iterable[bytes], *, complete: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Line]:
    """The lines of a log, and now and then the present state of one that is being rewritten."""
    pauses = chain(_FIRST_SECONDS, repeat(STATE_SECONDS))
    line, due = _Unfinished(), clock() + next(pauses)
    for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line.add(end)
            yield line.seen(finished=True)
            line = _Unfinished()
        line.add(rest)
        if line.has_state and clock() >= due:
            due = clock() + next(pauses)
            yield line.seen(finished=False)
    if complete and not line.is_empty:
        yield line.seen(finished=True)


class _Unfinished:
    """A line that is being written: its time, and a bounded part of what a terminal would show."""

    def __init__(self) -> None:
        self._is_rewritten = False
        self._start: bytes | None = b""  # until it holds the whole time
        self._time: Instant | None = None
        self._text, self._omitted = bytearray(), 0
        self._overwritten = ""

    @property
    def is_empty(self) -> bool:
        return self._start == b""

    @property
    def has_state(self) -> bool:
        """Whether the line was rewritten, so that a whole state of it has come."""
        return bool(self._overwritten)

    def add(self, data: bytes) -> None:
        if self._start is not None:
            self._start += data
            if b" " not in self._start and len(self._start) < _STAMP_SIZE:
                return
            data = self._begin(self._start)
        *rewritten, last = data.split(b"\r")
        for state in rewritten:
            self._append(state)
            self._overwritten = self._shown() or self._overwritten
            self._text, self._omitted, self._is_rewritten = bytearray(), 0, True
        self._append(last)

    def seen(self, *, finished: bool) -> Line:
        if self._start is not None:
            self._append(self._begin(self._start))
        if not finished:
            # What follows the last carriage return may be half of a state: the one before it is whole.
            return Line(self._time, self._overwritten, finished=False)
        text = self._shown()
        return Line(self._time, self._overwritten if self._is_rewritten and not text else text)

    def _begin(self, start: bytes) -> bytes:
        """Take the time off the line; returns the rest."""
        stamp, _, text = start.partition(b" ")
        self._start, self._time = None, instant(stamp.decode(errors="replace"))
        return text if self._time else start

    def _append(self, data: bytes) -> None:
        self._text += data
        if len(self._text) > 2 * LONGEST:
            self._omitted += len(self._text) - LONGEST
            del self._text[LONGEST // 2 : -LONGEST // 2]

    def _shown(self) -> str:
        """The text; blank is as good as nothing where a bar was erased."""
        text, omitted = bytes(self._text), self._omitted
        if len(text) > LONGEST:
            omitted += len(text) - LONGEST
            text = text[: LONGEST // 2] + text[-LONGEST // 2 :]
        if not omitted:
            return "" if self._is_rewritten and text.isspace() else text.decode(errors="replace")
        begin, end = text[: LONGEST // 2], text[LONGEST // 2 :]
        return f"{begin.decode(errors='replace')} [{omitted} bytes] {end.decode(errors='replace')}"


@dataclass(slots=True)
class Mark:
    """How far a log was read."""

    first: Instant | None = None  # identifies the log: no two containers write in one nanosecond
    last: Instant | None = None
    repeats: int = 0  # lines in a row that have the time of the last
    latest: Instant | None = None  # later than `last` after the node's clock was set back

    @property
    def since(self) -> dict[str, str]:
        """The query for what follows: the API knows whole seconds only, so some lines come again."""
        if self.last is None:
            return {}
        return {"sinceTime": datetime.fromtimestamp(self.last[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}

    def spans(self, time: Instant) -> bool:
        """Whether a line of this time is between those that were read."""
        return self.first is not None and self.latest is not None and self.first <= time <= self.latest

    def move(self, time: Instant) -> None:
        """Take in that one more line was read."""
        self.repeats = self.repeats + 1 if time == self.last else 1
        self.first, self.last = self.first or time, time
        self.latest = max(self.latest or time, time)


def unread(
    lines: Iterable[Line], mark: Mark, earlier: Sequence[Mark] = (), *, was_rotated: bool = False
) -> Iterator[Line]:
    """The lines after `mark`, which moves with them. A log that was read before continues after its mark.

    Only the beginning of an answer repeats what was read. From the first new line on all lines are new, even
    if their times are earlier: a node's clock may be set back.

        read         10:59:58 a, 10:59:59 b, (set back) 10:30:00.1 c, then the connection is cut
        asked since  10:30:00
        answer       10:59:58 a, 10:59:59 b: read, as they are not later than the latest of all
                     10:30:00.1 c: read, as it is the last; what follows is new
                     10:30:00.2 d, ..., 10:59:58.5 z
    """
    resuming = mark.last is not None
    passed = False  # the lines from before the clock was set back, if it was
    previous, repeats = None, 0
    for line in lines:
        if line.time is None:
            # A line that the runtime stored in parts, of which the first is older than what was asked for.
            if not resuming and not _KUBELETS_OWN.match(line.text):
                yield line
            continue
        if mark.last is None and (same := _same(line.time, earlier, was_rotated=was_rotated)):
            resuming, mark.first, mark.last = True, same.first, same.last
            mark.repeats, mark.latest = same.repeats, same.latest
        if resuming:
            passed |= line.time == mark.last or (previous is not None and line.time < previous)
            repeats = repeats + 1 if line.time == previous else 1
            previous = line.time
            if _was_read(line.time, repeats, mark, passed=passed):
                continue
            resuming = False
        if line.finished:
            mark.move(line.time)
        yield line


def _same(first: Instant, earlier: Sequence[Mark], *, was_rotated: bool) -> Mark | None:
    exact = [mark for mark in earlier if mark.first == first]
    within = [mark for mark in earlier if was_rotated and mark.spans(first)]
    return next(iter([*exact, *within]), None)


def _was_read(time: Instant, repeats: int, mark: Mark, *, passed: bool) -> bool:
    if mark.last is None or mark.latest is None:
        return False
    return (time, repeats) <= (mark.last, mark.repeats) or (not passed and time <= mark.latest)
