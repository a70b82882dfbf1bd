"""What an epoch used of the machine."""

from __future__ import annotations

import itertools

import pytest
import torch

from ddpipe.train import journal
from ddpipe.train.journal import ResourceUsage, summarized

CPU = torch.device("cpu")


class Clock:
    """Two clocks that somebody else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        monkeypatch.setattr(journal.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(journal.time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(journal, "cpus", lambda: 4)


def test_share_of_time_waiting_for_data_is_reported_per_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    measured = ResourceUsage(CPU)

    def batches(wait: float) -> itertools.count[int]:
        for number in range(3):
            clock.now += wait
            yield number

    for wait, share in ((1.0, 0.25), (3.0, 0.5)):
        assert [number for number in measured.waiting(batches(wait)) if clock_moves(clock)] == [0, 1, 2]
        assert measured.epoch()["data_wait"] == share


def clock_moves(clock: Clock) -> bool:
    """A step of training: three seconds, on two of the four CPUs."""
    clock.now, clock.cpu = clock.now + 3, clock.cpu + 6
    return True


def test_the_share_of_the_cpus_is_of_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    measured = ResourceUsage(CPU)
    clock_moves(clock)
    assert measured.epoch()["cpu"] == 0.5


def test_memory_is_in_bytes_and_without_gpus_where_there_are_none() -> None:
    used = ResourceUsage(CPU).epoch()
    assert 50e6 < used["memory"] < 1e12
    assert "gpu_memory" not in used


def test_a_summary_adds_up_all_attempts() -> None:
    history = [{"data_wait": 0.1, "cpu": 0.5, "memory": 10}, {"data_wait": 0.3, "cpu": 0.7, "memory": 30}]
    attempts = [{"nodes": 2, "seconds": 1800}, {"nodes": 1, "seconds": 3600}]
    assert summarized(history, attempts) == {
        "node_hours": 2,
        "data_wait": 0.2,
        "cpu": 0.6,
        "memory": 30,
    }
