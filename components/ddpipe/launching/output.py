"""Writes lines in the background, so that a slow reader never blocks the launch protocol."""

from __future__ import annotations

from contextlib import suppress
from queue import Full, Queue
from threading import Event, Thread
from typing import TextIO

MOST_LINES = 2000
"""Lines that wait for a slow reader: of at most 4 KiB each, so 8 MB."""


class Output:
    """A bounded queue of lines, written to a stream by a thread of its own.

    Lines for a closed stream are dropped: that nobody reads them is no reason to stop a launch.
    """

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
            try:
                if isinstance(line, Event):
                    self._out.flush()
                else:
                    self._out.write(line + "\n")
                    if self._lines.empty():
                        self._out.flush()
            except (OSError, ValueError):
                pass
            finally:
                if isinstance(line, Event):
                    line.set()
