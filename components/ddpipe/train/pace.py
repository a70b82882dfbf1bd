"""Which rank keeps the others waiting, while they train.

All ranks take a step together, so that from outside a slow one looks like the others. They wait for it in the
backward pass, where gradients are exchanged. What a rank does alone comes before: it waits for its batch, and
computes the forward pass. Each rank measures that, and now and then all compare:

    steps    rank 0    rank 1    rank 2
    1-16     0.05 s    0.05 s    0.31 s
    17-32    0.05 s    0.06 s    0.30 s    reported: rank 2, for the second time in a row
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ddpipe.distributed import World

T = TypeVar("T")

_RATIO, _SECONDS = 1.5, 0.02
"""A rank is slow from this multiple of the median on, and if it costs each step as many seconds."""

_IN_A_ROW = 2
_MORE = 10
"""After a report, this multiple of comparisons in a row until the next one."""

_log = logging.getLogger(__name__)


def slowest(seconds: Sequence[float]) -> int | None:
    """The rank that is much slower than most; None if there is none."""
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    usual = statistics.median_low(seconds)
    is_slow = seconds[rank] > _RATIO * usual and seconds[rank] - usual > _SECONDS
    return rank if is_slow else None


class Pace:
    """Measures this rank's own part of its steps, and compares it with the other ranks'.

    Args:
        world: The processes that train together.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seconds, self._steps = 0.0, 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._slow: int | None = None
        self._in_a_row, self._due = 0, _IN_A_ROW

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time until each is there counts."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self._seconds += time.perf_counter() - began
            if batch is None:
                return
            self._steps += 1
            yield batch

    @contextmanager
    def working(self) -> Iterator[None]:
        """The time that the device needs for what is done here counts, if there are other ranks."""
        if self._world.size == 1:
            yield
            return
        if self._world.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
            return
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began

    def compare(self) -> None:
        """Report the slow rank, if there is one; all ranks have to call this after the same step."""
        if self._world.size == 1:
            return
        own = torch.zeros(self._world.size, dtype=torch.float64, device=self._world.device)
        own[self._world.rank] = self._mean()
        seconds = self._world.sum(own).tolist()
        slow = slowest(seconds)
        if slow is None or slow != self._slow:
            self._in_a_row, self._due = 0, _IN_A_ROW
        self._slow = slow
        self._in_a_row += 1
        if slow is not None and self._in_a_row >= self._due:
            self._due = self._in_a_row * _MORE
            if self._world.is_main:
                _log.warning("%s", _report(slow, seconds))

    def _mean(self) -> float:
        """Seconds for each step since the last call."""
        for begin, end in self._events:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        mean = self._seconds / max(1, self._steps)
        self._seconds, self._steps, self._events = 0.0, 0, []
        return mean


def _report(rank: int, seconds: Sequence[float]) -> str:
    machine = rank // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return (
        f"rank {rank} (machine {machine}) keeps the others waiting: its batch and forward pass take "
        f"{seconds[rank]:.2f} s in each step, {statistics.median_low(seconds):.2f} s on most ranks"
    )
