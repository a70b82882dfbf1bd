"""Which rank keeps the others waiting."""

from __future__ import annotations

import logging

import pytest
import torch

from ddpipe.distributed import World
from ddpipe.train.journal import Pace, slowest


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ([0.05, 0.05, 0.31], 2),
        ([0.31, 0.05], 0),
        ([0.05, 0.05, 0.07], None),  # not much slower
        ([0.001, 0.001, 0.01], None),  # nothing that matters
        ([0.3, 0.3, 0.3, 0.3], None),
        ([0.0], None),
    ],
)
def test_a_rank_is_slow_next_to_most(seconds: list[float], slow: int | None) -> None:
    assert slowest(seconds) == slow


class Peers(World):
    """Three ranks, of which this one is rank 0 and as fast as rank 1; rank 2 takes this many seconds."""

    seconds = 0.3

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        own = float(values[0])
        return torch.tensor([own, own, own + self.seconds])


def test_a_slow_rank_is_reported_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    pace = Pace(Peers(0, 3, torch.device("cpu")))
    reported = []
    with caplog.at_level(logging.WARNING):
        for _ in range(250):
            pace.compare()
            reported.append(len(caplog.records))
    assert [reported.index(count) + 1 for count in (1, 2, 3)] == [2, 20, 200]
    assert "rank 2" in caplog.messages[0]


def test_a_rank_that_is_slow_once_is_not_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(Peers(0, 3, torch.device("cpu")))
    for seconds in (0.3, 0.0, 0.3, 0.0):
        monkeypatch.setattr(Peers, "seconds", seconds)
        pace.compare()
    assert not caplog.records


def test_reading_and_working_count() -> None:
    pace = Pace(World(0, 1, torch.device("cpu")))
    for _ in pace.reading(iter(range(4))):
        with pace.working():
            torch.zeros(1)
    assert 0 < pace._mean() < 1
    assert pace._mean() == 0, "each window is measured by itself"
