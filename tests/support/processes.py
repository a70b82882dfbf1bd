"""Waiting for other processes, and finding them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 120


@dataclass(frozen=True)
class Process:
    """A living process: its id, the folder that it works in, and its command line."""

    pid: int
    folder: Path
    command: tuple[str, ...]


def processes() -> Iterator[Process]:
    """All but those that do not let themselves be looked at."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().decode().split("\0")
            yield Process(int(path.name), (path / "cwd").readlink(), tuple(command))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has to happen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
