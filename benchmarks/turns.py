"""Programs that take turns on one machine, so that a slow minute affects all of them equally.

Each runs for a few seconds while the others are stopped (SIGSTOP to all of its processes). Its clock
counts only its own turns.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ACCURACY = re.compile(r"epoch=(\d+).*val(?:idation)?_accuracy=([0-9.]+)")
TURN = 8.0
"""Seconds of a turn."""


@dataclass
class Program:
    """One of the programs.

    Attributes:
        name: What it is called in a table.
        command: Its arguments.
        environment: Variables in addition to those of this process.
        log: File of what it says.
        seconds: Its own time.
        memory: Largest memory of all its processes together that was seen, in bytes; shared pages count once.
        scores: Own time and accuracy at the end of each epoch.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    seconds: float = 0.0
    memory: int = 0
    scores: list[tuple[float, float]] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, stopped until its first turn."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, env={**os.environ, **self.environment}, stdout=log, stderr=subprocess.STDOUT
            )
        self._signal(signal.SIGSTOP)

    def take_turn(self) -> bool:
        """Let it run for a turn; returns whether it has ended."""
        assert self._process
        before, began = self.seconds, time.monotonic()
        self._signal(signal.SIGCONT)
        while self.seconds - before < TURN and self._process.poll() is None:
            time.sleep(0.1)
            self.seconds = before + time.monotonic() - began
            self._look()
        if self._process.poll() is None:
            self._signal(signal.SIGSTOP)
            self.memory = max(self.memory, 1024 * sum(map(_pss, family(self._process.pid))))
            return False
        if self._process.returncode:
            raise SystemExit(f"{self.name} failed:\n{self.log.read_text()[-3000:]}")
        return True

    def stop(self) -> None:
        """End it, even if it is busy."""
        if self._process and self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes; torchrun puts its own into sessions of their own."""
        assert self._process
        for pid in list(family(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _look(self) -> None:
        """Note the scores of epochs that have ended since the last look."""
        found = ACCURACY.findall(self.log.read_text(errors="replace"))
        self.scores += [(self.seconds, float(score)) for _, score in found[len(self.scores) :]]

    def seconds_to(self, accuracy: float) -> float | None:
        """Own time until an accuracy was reached first, if it was."""
        return next((seconds for seconds, score in self.scores if score >= accuracy), None)

    @property
    def best(self) -> float:
        """The best accuracy."""
        return max(score for _, score in self.scores)


def run_in_turns(programs: Sequence[Program]) -> None:
    """Run all of them to their ends."""
    try:
        for program in programs:
            program.start()
        waiting = list(programs)
        while waiting:
            waiting = [program for program in waiting if not program.take_turn()]
    finally:
        for program in programs:
            program.stop()


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it, parents first."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                yield from family(int(child))


def _pss(pid: int) -> int:
    """Kilobytes of a process's memory, of shared pages its share."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found.group(1)) if found else 0
    return 0
