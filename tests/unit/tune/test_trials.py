"""Optuna's answers: pure, within the space, and better than chance."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from ddpipe.search.space import parsed
from ddpipe.tune.trials import distributions, importance, proposed, pruned

SPACE = parsed(["learning_rate=log(0.001,1)", "batch_size=16..64", "optimizer=sgd,adamw"])


def ended(
    values: dict[str, object], scores: list[float], state: TrialState = TrialState.COMPLETE
) -> FrozenTrial:
    return create_trial(
        state=state,
        params=values,
        distributions=distributions(SPACE),
        value=scores[-1],
        intermediate_values=dict(enumerate(scores, start=1)),
    )


def history(
    trials: int, score: Callable[[dict[str, object]], float], sampler: str = "tpe"
) -> list[FrozenTrial]:
    past: list[FrozenTrial] = []
    while len(past) < trials:
        values = proposed(SPACE, sampler, 7, past)
        past.append(ended(values, [score(values)]))
    return past


def near_a_tenth(values: dict[str, object]) -> float:
    return -abs(math.log10(float(str(values["learning_rate"]))) + 1)


def test_values_are_in_the_space_and_short() -> None:
    for trial in history(30, near_a_tenth):
        assert trial.params in SPACE
        assert isinstance(trial.params["batch_size"], int)
        assert float(f"{trial.params['learning_rate']:.4g}") == trial.params["learning_rate"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_equal_trials_give_equal_proposals(sampler: str) -> None:
    past = history(12, near_a_tenth, sampler)
    assert [trial.params for trial in past] == [trial.params for trial in history(12, near_a_tenth, sampler)]
    assert proposed(SPACE, sampler, 7, past) == proposed(SPACE, sampler, 7, past)
    assert proposed(SPACE, sampler, 7, past) != proposed(SPACE, sampler, 8, past)


def test_tpe_comes_closer_than_chance() -> None:
    """Mean distance of the last 15 of 30 trials from the optimum."""
    distance = {
        sampler: -sum(trial.value or 0 for trial in history(30, near_a_tenth, sampler)[15:])
        for sampler in ("tpe", "random")
    }
    assert distance["tpe"] < 0.7 * distance["random"]


def test_running_trials_do_not_keep_others_from_beginning() -> None:
    past = history(10, near_a_tenth)
    running = create_trial(
        state=TrialState.RUNNING, params=past[0].params, distributions=distributions(SPACE)
    )
    assert proposed(SPACE, "tpe", 7, [*past, running]) in SPACE


VALUES = {"learning_rate": 0.1, "batch_size": 32, "optimizer": "sgd"}


def test_the_median_rule_stops_a_bad_trial_at_the_epoch_where_it_shows() -> None:
    past = [ended(VALUES, [0.5, 0.6, 0.7]) for _ in range(4)]
    assert pruned("median", [0.55, 0.55], past) == 2
    assert pruned("median", [0.55, 0.65], past) is None
    assert pruned("none", [0.1, 0.1], past) is None
    assert pruned("median", [0.1], past[:2]) is None


def test_the_verdict_does_not_depend_on_how_many_epochs_are_known() -> None:
    past = [ended(VALUES, [0.5, 0.6, 0.7]) for _ in range(4)]
    assert pruned("median", [0.55, 0.55, 0.9], past) == pruned("median", [0.55, 0.55], past)


def test_what_matters_comes_first() -> None:
    shares = importance(history(40, near_a_tenth, "random"))
    assert next(iter(shares)) == "learning_rate"
    assert sum(shares.values()) == pytest.approx(1)


def test_importance_of_too_few_trials_is_unknown() -> None:
    assert importance([]) == {}
    assert importance(history(1, near_a_tenth)) == {}
