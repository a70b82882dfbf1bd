"""Lines for people, written without ever making the protocol wait for who reads them."""

from __future__ import annotations

from contextlib import suppress
from queue import Full, Queue
from threading import Event, Thread
from typing import TextIO


class Output:
    """Lines on their way to a stream, written by a thread of their own.

    A closed stream swallows them: that nobody reads is no reason to stop launching.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lines: Queue[str | Event] = Queue(maxsize=10_000)
        self._taken = 0
        Thread(target=self._write, name="output", daemon=True).start()

    def log(self, line: str) -> None:
        """Write a line of a log; waits while the reader is slow."""
        self._lines.put(line)

    def say(self, line: str) -> None:
        """Write a line of our own; dropped while the reader is stuck."""
        with suppress(Full):
            self._lines.put_nowait(f"[launch] {line}")

    def finish(self, silence: float = 2) -> None:
        """Wait until everything so far is written, as long as lines are taken within `silence` seconds."""
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
