"""Requests to stop (SIGTERM, SIGINT): one way to hear them; and the names of signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
