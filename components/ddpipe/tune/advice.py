"""What Optuna says: the values of the next trial, when a trial stops, which hyperparameters matter.

Each function is pure: the trials so far go in, an answer comes out. So an interrupted study that continues
asks the same questions and gets the same answers; no sampler's state has to survive a crash.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from ddpipe.search.options import Pruning, Sampler
from ddpipe.search.space import Choice, Dimension, Range, Space

STARTUP = 8
"""Trials with random values, before TPE models those so far."""

DIGITS = 4
"""Significant digits of a proposed number: nobody needs more, and they can be read and typed."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Whether a trial stops early.

    Attributes:
        epoch: After which it stops; None if it continues.
        notes: What the pruner has to know about this trial later.
    """

    epoch: int | None
    notes: Mapping[str, Any] = field(default_factory=dict)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms."""
    return {item.name: _distribution(item) for item in space.dimensions}


def _distribution(item: Dimension) -> BaseDistribution:
    match item:
        case Choice():
            return CategoricalDistribution(item.values)
        case Range(whole=True):
            return IntDistribution(int(item.low), int(item.high), log=item.log)
        case Range():
            return FloatDistribution(item.low, item.high, log=item.log)


def proposed(space: Space, sampler: str, seed: int, past: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The values of the next trial; the same for the same trials so far."""
    study = _study(sampler=_sampler(Sampler(sampler), _seed(seed, len(past))), past=past)
    values = study.ask(distributions(space)).params
    return {item.name: _rounded(item, values[item.name]) for item in space.dimensions}


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def _sampler(kind: Sampler, seed: int) -> BaseSampler:
    match kind:
        case Sampler.TPE:
            return TPESampler(n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=seed)
        case Sampler.RANDOM:
            return RandomSampler(seed=seed)
        case _:
            raise ValueError(f"Optuna is not used for {kind}")


def _rounded(item: Dimension, value: Any) -> Any:  # noqa: ANN401 - of the hyperparameter's own type
    if isinstance(item, Choice) or item.whole:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), item.low), item.high)


def pruned(pruning: str, scores: Sequence[float], past: Sequence[FrozenTrial]) -> Pruned:
    """Whether a trial stops, and after which epoch."""
    study = _study(pruner=_pruner(Pruning(pruning)), past=past)
    trial = study.ask()
    for epoch, score in enumerate(scores, start=1):
        trial.report(score, epoch)
        if trial.should_prune():
            return Pruned(epoch, study.trials[trial.number].system_attrs)
    return Pruned(None, study.trials[trial.number].system_attrs)


def _pruner(kind: Pruning) -> BasePruner:
    match kind:
        case Pruning.MEDIAN:
            return MedianPruner(n_startup_trials=4)
        case Pruning.HALVING:
            return SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
        case Pruning.NONE:
            return NopPruner()


def importance(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """The share of each hyperparameter in what the trials differ by, the largest first; empty if unknown."""
    study = _study(past=[trial for trial in trials if trial.state is TrialState.COMPLETE])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental; or too few trials, which give equal shares
        try:
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (ValueError, RuntimeError):  # fewer than two, or all alike
            return {}
    return {name: float(share) for name, share in found.items()} if len(set(found.values())) > 1 else {}


def _study(
    *,
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    past: Sequence[FrozenTrial] = (),
) -> optuna.Study:
    """A study in memory, with trials."""
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.add_trials(past)
    return study
