"""Writing lines without ever making the protocol wait for who reads them."""

from __future__ import annotations

from queue import Full, Queue
from threading import Event, Thread
from typing import TextIO


class Voice:
    """Lines on their way to a stream, written by a thread of their own.

    A closed stream swallows them: that nobody listens is no reason to stop launching.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lines: Queue[str | Event] = Queue(maxsize=10_000)
        Thread(target=self._write, name="voice", daemon=True).start()

    def pass_on(self, line: str) -> None:
        """Write a line of a log; waits while the reader is slow."""
        self._lines.put(line)

    def say(self, line: str) -> None:
        """Write a line of our own; dropped while the reader is stuck."""
        try:
            self._lines.put_nowait(f"[launch] {line}")
        except Full:
            return

    def finish(self, seconds: float = 2) -> None:
        """Wait until everything so far is written, for a while."""
        written = Event()
        try:
            self._lines.put(written, timeout=seconds)
        except Full:
            return
        written.wait(seconds)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            try:
                if isinstance(line, Event):
                    self._out.flush()
                    line.set()
                else:
                    self._out.write(line + "\n")
                    if self._lines.empty():
                        self._out.flush()
            except (OSError, ValueError):
                if isinstance(line, Event):
                    line.set()
