"""Which differences between an exported and an evaluated model count."""

from __future__ import annotations

import numpy as np
import pytest

from ddpipe.export.agreement import PROBABILITY, agreement, same_decisions, spread_of
from ddpipe.model.tasks import TASKS, FloatArray

MULTICLASS, MULTILABEL = TASKS["multiclass"], TASKS["multilabel"]


def logits(seed: int = 0, scale: float = 2.0, samples: int = 50, classes: int = 3) -> FloatArray:
    return np.random.default_rng(seed).normal(0, scale, (samples, classes)).astype(np.float32)


def test_difference_that_nobody_sees_agrees() -> None:
    """0.0039 in logits moves a probability by 0.00098 at most; 0.0043 was rejected before."""
    evaluated = logits()
    found = agreement(evaluated + 0.0039, evaluated, MULTILABEL, rounding=0, spread=spread_of(evaluated))
    assert found.agrees
    assert found.logits == pytest.approx(0.0039, rel=0.01)
    assert 0.0009 < found.probabilities < PROBABILITY


def test_difference_of_one_sample_that_can_be_seen_disagrees() -> None:
    evaluated = logits()
    found = evaluated.copy()
    found[17, 1] += 0.02
    compared = agreement(found, evaluated, MULTILABEL, rounding=1e-4, spread=spread_of(evaluated))
    assert not compared.agrees
    assert str(compared) == "0.02 in logits, 0.005 in probabilities"


def test_difference_that_rounding_explains_agrees() -> None:
    """A network with logits of 100,000 rounds away what moves probabilities near a tie."""
    evaluated = np.array([[100_000.0, 100_000.1], [0.0, 0.0]], np.float32)
    found = evaluated + np.array([[0.1, -0.1], [0, 0]], np.float32)
    compared = agreement(found, evaluated, MULTICLASS, rounding=10, spread=50_000)
    assert compared.probabilities > PROBABILITY
    assert compared.agrees


def test_another_network_with_the_same_even_probabilities_disagrees() -> None:
    """Two untrained networks move no probability by 0.001 and have nothing else in common."""
    one, other = logits(0, scale=1e-4), logits(1, scale=1e-4)
    compared = agreement(other, one, MULTICLASS, rounding=1e-7, spread=spread_of(one))
    assert compared.probabilities < PROBABILITY
    assert not compared.agrees


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("task", [MULTICLASS, MULTILABEL], ids=lambda task: task.name)
def test_logit_that_is_no_number_disagrees(task: object, broken: float) -> None:
    """The sigmoid of infinity is 1, as that of 50 is: only the logits show it."""
    evaluated = np.full((4, 2), 50.0, np.float32)
    found = evaluated.copy()
    found[3, 1] = broken
    compared = agreement(found, evaluated, task, rounding=np.inf, spread=1e9)  # type: ignore[arg-type]
    assert not compared.agrees


def test_decisions_of_a_sample_count_only_together() -> None:
    evaluated = np.array([[1, 1, 1], [1, -1, 1], [-1, -1, -1]], np.float32)
    found = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1]], np.float32)
    assert same_decisions(found, evaluated, MULTILABEL, [0.5] * 3) == 1


def test_probability_at_its_threshold_is_a_yes() -> None:
    at, below = np.zeros((1, 1), np.float32), np.full((1, 1), -1e-3, np.float32)
    assert MULTILABEL.decisions(MULTILABEL.probabilities(at), [0.5]).all()
    assert same_decisions(at, at + 1, MULTILABEL, [0.5]) == 1
    assert same_decisions(below, at, MULTILABEL, [0.5]) == 0


@pytest.mark.parametrize("task", [MULTICLASS, MULTILABEL], ids=lambda task: task.name)
def test_agreeing_models_decide_alike_away_from_ties(task: object) -> None:
    evaluated = logits(samples=2000)
    found = evaluated + np.random.default_rng(1).uniform(-0.0015, 0.0015, evaluated.shape).astype(np.float32)
    kind = MULTICLASS if task is MULTICLASS else MULTILABEL
    assert agreement(found, evaluated, kind, rounding=0, spread=spread_of(evaluated)).agrees
    probabilities = kind.probabilities(evaluated)
    if kind is MULTICLASS:
        second, first = np.sort(probabilities)[:, -2:].T
        clear = first - second > 2 * PROBABILITY
    else:
        clear = (np.abs(probabilities - 0.5) > PROBABILITY).all(axis=1)
    assert clear.sum() > 1900
    assert same_decisions(found[clear], evaluated[clear], kind, [0.5] * 3) == clear.sum()
