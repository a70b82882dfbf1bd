"""The learning rate of every step."""

from __future__ import annotations

import pytest
from recipes import plain

from ddpipe.train.optimizer import learning_rate


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    recipe = plain(learning_rate=0.4, warmup_fraction=0.2)
    rates = [learning_rate(recipe, step, 20) for step in range(20)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[12] == pytest.approx(0.2)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.01


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
@pytest.mark.parametrize("warmup", [0, 0.5, 0.999])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_every_step_has_a_learning_rate_within_its_bounds(steps: int, warmup: float, schedule: str) -> None:
    recipe = plain(warmup_fraction=warmup, schedule=schedule)
    assert all(0 < learning_rate(recipe, step, steps) <= recipe.learning_rate for step in range(steps))


def test_a_linear_schedule_falls_in_a_line_and_a_constant_one_stays() -> None:
    linear = plain(learning_rate=0.4, warmup_fraction=0, schedule="linear")
    assert [learning_rate(linear, step, 4) for step in range(4)] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    constant = plain(learning_rate=0.4, warmup_fraction=0.5, schedule="constant")
    assert [learning_rate(constant, step, 4) for step in range(4)] == pytest.approx([0.2, 0.4, 0.4, 0.4])
