"""Signals: requests to stop (SIGTERM, SIGINT), their names, and which of them ended a rank of torchrun."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple


@contextmanager
def on_stop(act: Callable[[], object]) -> Iterator[list[int]]:
    """Call `act`, which may raise, for every SIGTERM and SIGINT; yields the list of those that came.

    Only a process's main thread may do this: elsewhere it does nothing.
    """
    heard: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        act()

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_of(number: int) -> str:
    """SIGKILL for 9; of a number without a name, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_KILLED = re.compile(r"rank\s*: (\d+).*\n\s*exitcode\s*: -(\d+) .*\n\s*error_file: <N/A>")


class Killed(NamedTuple):
    """A rank that a signal ended."""

    rank: int
    signal: str


def first_killed(report: str) -> Killed | None:
    """The first rank that a signal ended before it could write its error, if torchrun's report names one."""
    others, _, root = report.partition("Root Cause")  # torchrun names the first to fail last
    found = (
        Killed(int(rank), name_of(int(number)))
        for rank, number in [*_KILLED.findall(root), *_KILLED.findall(others)]
    )
    # SIGTERM, and SIGKILL 30 seconds later, are how torchrun itself ends the others.
    return next((killed for killed in found if killed.signal != "SIGTERM"), None)
