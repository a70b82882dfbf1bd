"""Waiting for other processes, finding them, and a port where they meet."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 300
"""Seconds after which a test gives up on something that has to happen; no machine is that busy.

Half of the time-outs that the tests give to what must not wait for one.
"""

_TAKEN: list[socket.socket] = []


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


def free_port() -> int:
    """A port for a process that binds it later, and that nobody else gets in the meantime.

    It is below those that the system gives to connections, and a name that only one process can have, of a
    socket that is not a file, keeps other tests from it.
    """
    for port in random.sample(range(20_000, 32_000), 1_000):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0ddpipe-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            name.close()
            continue
        _TAKEN.append(name)  # as long as this process lives
        return port
    raise AssertionError("no port is free")


def in_proportion(seconds: Callable[[int], float], size: int) -> bool:
    """Whether four times the size takes less than ten times the time in one of five tries.

    What grows with the square takes sixteen times the time in each of them. A busy machine may slow down one
    try, or a few, of what grows with the size.
    """
    return any(seconds(4 * size) < 10 * seconds(size) + 0.1 for _ in range(5))
