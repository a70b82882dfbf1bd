"""When a training saves and when it stops."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from ddpipe.distributed import World
from ddpipe.train import timetable
from ddpipe.train.timetable import TrainingRequest, Watch, watching

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(timetable.time, "monotonic", lambda: now[0])
    return now


def test_a_checkpoint_is_asked_for_so_many_minutes_after_the_last_one(clock: list[float]) -> None:
    watch = Watch(2)
    asked = []
    for clock[0] in (1000.0, 1119.0, 1120.0, 1121.0):
        asked.append(watch.agreed(ALONE))
    assert asked == [
        TrainingRequest.CONTINUE,
        TrainingRequest.CONTINUE,
        TrainingRequest.SAVE,
        TrainingRequest.SAVE,
    ]
    watch.saved()
    assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
    clock[0] += 120
    assert watch.agreed(ALONE) is TrainingRequest.SAVE


def test_a_stop_request_takes_effect_at_any_time(clock: list[float]) -> None:
    watch = Watch(1)
    watch.request_stop()
    clock[0] += 3600
    assert watch.agreed(ALONE) is TrainingRequest.STOP
    watch.saved()
    assert watch.agreed(ALONE) is TrainingRequest.STOP


def test_of_several_ranks_the_most_urgent_decides() -> None:
    assert max(TrainingRequest) is TrainingRequest.STOP
    assert sorted(TrainingRequest) == [TrainingRequest.CONTINUE, TrainingRequest.SAVE, TrainingRequest.STOP]


def test_a_rank_whose_parent_is_gone_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(1)
    assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert watch.agreed(ALONE) is TrainingRequest.STOP


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_inside_and_as_before_outside(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with watching(1) as watch:
        assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
        os.kill(os.getpid(), number)
        assert watch.agreed(ALONE) is TrainingRequest.STOP
    assert signal.getsignal(number) is before
