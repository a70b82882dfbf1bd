"""Signals: passing a request to stop on to the processes that do the work, and naming what ended one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def passing_on(stop: Callable[[], object]) -> Iterator[list[int]]:
    """Call `stop` for every SIGTERM and SIGINT; yields the list of those that came.

    Only a process's main thread may do this: elsewhere it does nothing.
    """
    told: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        stop()

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_of(number: int) -> str:
    """SIGKILL for 9; of a number without a name, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
