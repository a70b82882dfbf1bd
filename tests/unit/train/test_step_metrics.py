"""Loss and metrics of the steps of an epoch: each is summed over the ranks once, and a bad one is named."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from ddpipe.distributed import World
from ddpipe.train.step import StepMetrics


class Twins:
    """Two ranks that always have the same values."""

    device = torch.device("cpu")

    def sum(self, values: Tensor) -> Tensor:
        return values.mul_(2)


def metrics(*losses: float) -> StepMetrics:
    made = StepMetrics(len(losses), 2, cast("World", Twins()))
    made.rows[:, 0] = torch.tensor(losses, dtype=torch.float64)
    return made


def test_each_step_is_summed_over_the_ranks_once() -> None:
    made = metrics(1, 2, 3, 4)
    assert made.reduce(2) is None
    assert made.rows[:, 0].tolist() == [2, 4, 3, 4]
    assert made.reduce(2) is None
    assert made.reduce(4) is None
    assert made.rows[:, 0].tolist() == [2, 4, 6, 8]
    assert made.reduced == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_first_step_with_nan_is_named_by_its_place_in_the_epoch(bad: float) -> None:
    made = metrics(1, 2, 3, bad, bad)
    assert made.reduce(3) is None
    assert made.reduce(5) == 3
    made = metrics(bad, 1)
    assert made.reduce(2) == 0


def test_a_metric_that_is_no_number_is_as_bad_as_a_loss() -> None:
    made = metrics(1, 2)
    made.rows[1, 1] = float("nan")
    assert made.reduce(2) == 1


def test_what_a_checkpoint_had_summed_is_not_summed_again() -> None:
    made = metrics(0, 0, 3)
    made.restore(torch.tensor([[10.0, 1], [20, 2]]))
    made.reduce(3)
    assert made.rows[:, 0].tolist() == [10, 20, 6]
    assert made.rows.dtype == torch.float64
