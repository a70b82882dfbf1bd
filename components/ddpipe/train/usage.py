"""What an epoch used of the machine: where its time went, and how much memory it took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ddpipe.processes.cpus import cpus

T = TypeVar("T")

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def summarised(
    history: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]], node_hour_price: float
) -> dict[str, float]:
    """A training in a few numbers.

    Args:
        history: The records of its epochs.
        attempts: `nodes` and `seconds` of each process group that trained.
        node_hour_price: What a node costs for an hour; 0 if nobody said.

    Returns:
        `node_hours`, over all attempts; `cost`, if there is a price; of each quantity of `Usage.epoch` the
        mean of a share, the largest of an amount.
    """
    node_hours = sum(attempt["nodes"] * attempt["seconds"] for attempt in attempts) / 3600
    shares = {name: [epoch[name] for epoch in history if name in epoch] for name in ("data_wait", "cpu")}
    amounts = {name: [epoch[name] for epoch in history if name in epoch] for name in ("memory", "gpu_memory")}
    return {
        "node_hours": round(node_hours, 6),
        **({"cost": round(node_hours * node_hour_price, 6)} if node_hour_price else {}),
        **{name: round(sum(values) / len(values), 4) for name, values in shares.items() if values},
        **{name: max(values) for name, values in amounts.items() if values},
    }


class Usage:
    """Of this process, from one epoch to the next."""

    def __init__(self, device: torch.device) -> None:
        """Begin to measure."""
        self._device = device
        self._begin()

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches, with the time noted that passes until each is there."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def epoch(self) -> dict[str, float]:
        """What was used since the last call.

        Returns:
            `data_wait`: share of the time in which the network waited for data; `cpu`: share of the CPUs'
            time that this process used; `memory`: its largest so far, in bytes; on a GPU `gpu_memory`: the
            largest in the epoch, in bytes.
        """
        seconds = time.perf_counter() - self._began
        used = {
            "data_wait": round(self._waited / seconds, 4),
            "cpu": round((time.process_time() - self._cpu_began) / seconds / cpus(), 4),
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
        }
        if self._device.type == "cuda":
            used["gpu_memory"] = torch.cuda.max_memory_allocated(self._device)
        self._begin()
        return used

    def _begin(self) -> None:
        self._began, self._cpu_began, self._waited = time.perf_counter(), time.process_time(), 0.0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
