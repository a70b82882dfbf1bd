"""When to save and when to stop: each rank sees its own signals and clock, all act on the same step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from ddpipe.distributed import World
from ddpipe.processes.signals import on_stop

History = Sequence[Mapping[str, Any]]
"""One record for each finished epoch."""


class Request(IntEnum):
    """What to do before the next step; the largest among the ranks counts."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2


class Watch:
    """Watches for SIGTERM, SIGINT, a parent that is gone, and the time of the next checkpoint."""

    def __init__(self, minutes: float) -> None:
        """Ask for a checkpoint `minutes` after the last one."""
        self._minutes = minutes
        self._stop_requested = False
        self._parent = os.getppid()
        self.saved()

    def request_stop(self) -> None:
        """Stop at the next step."""
        self._stop_requested = True

    def saved(self) -> None:
        """A checkpoint has been written: restart the clock."""
        self._next = time.monotonic() + 60 * self._minutes

    def agreed(self, world: World) -> Request:
        """The most urgent request of any rank; the same on all ranks."""
        return Request(world.max(self._request()))

    def _request(self) -> Request:
        if self._stop_requested or self._orphaned():
            return Request.STOP
        return Request.SAVE if time.monotonic() >= self._next else Request.CONTINUE

    def _orphaned(self) -> bool:
        """Whether torchrun was killed before it could forward a signal."""
        return os.getppid() != self._parent


@contextmanager
def watching(minutes: float) -> Iterator[Watch]:
    """Turn SIGTERM and SIGINT into requests; a thread other than the main one gets none."""
    watch = Watch(minutes)
    with on_stop(watch.request_stop):
        yield watch


def best_epoch(history: History, metric: str) -> int:
    """The place in the history of the first epoch with the largest value of a metric."""
    return max(range(len(history)), key=lambda place: history[place][metric])


def out_of_patience(history: History, metric: str, patience: int) -> bool:
    """Whether a metric has not improved for too long."""
    return 0 < patience < len(history) - best_epoch(history, metric) if history else False
