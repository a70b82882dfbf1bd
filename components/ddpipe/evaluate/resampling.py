"""How sure a score, or the difference of two models, is: intervals from resamples, and exact tests.

Intervals hold 95 %: Wilson's for a share, which stays honest when nothing was wrong, and a seeded bootstrap
for all else. Where samples belong together, such as the images of one patient, groups of them are drawn, not
samples: ten images of one patient say little more than one.

Both models' answers to an image share how hard it is, so their difference varies much less than either score:
the bootstrap of a difference draws images, each with both answers.

Sources: Wilson, JASA 22 (1927), through scipy; for groups with the effective sample size of Korn and
Graubard, Survey Methodology 24 (1998); Efron and Tibshirani, An Introduction to the Bootstrap (1993),
chapters 8 and 13 (percentile interval, also of a paired difference); McNemar, Psychometrika 12 (1947), in its
exact form, as Dietterich, Neural Computation 10 (1998), recommends for two classifiers on one test set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student

from ddpipe.model.metrics import METRICS, Answers
from ddpipe.model.scores import Statistic
from ddpipe.model.tasks import BoolArray, FloatArray, IntArray

CONFIDENCE = 0.95
# At most 1,000 resamples; fewer where samples times classes is so large that the model itself took less time.
RESAMPLES, FEWEST_RESAMPLES, BUDGET = 1000, 200, 200_000_000
# Resamples weighed together: small blocks stay in the processor's cache.
BLOCK = 32

Interval = tuple[float | None, float | None]
"""Lower and upper bound; none where resampling shows no spread."""


def intervals(
    answers: Answers, names: Sequence[str], groups: IntArray | None, seed: int = 0
) -> dict[str, Interval]:
    """The 95 % intervals of metrics by name; each resample is drawn once for all of them.

    Args:
        answers: To at least one sample.
        names: Of the metrics.
        groups: Shape (samples,): samples with equal numbers belong together; None: each is on its own.
        seed: The same seed gives the same intervals.
    """
    units = None if groups is None else np.unique(groups, return_inverse=True)[1]
    shares = [name for name in names if METRICS[name].is_share]
    statistics = {
        name: statistic(answers)
        for name in names
        if (statistic := METRICS[name].statistic) and name not in shares
    }
    found = bootstrap(
        statistics,
        groups=np.arange(len(answers.truth)) if units is None else units,
        resamples=max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // answers.probabilities.size)),
        seed=seed,
    )
    return {
        **dict.fromkeys(names, (None, None)),
        **dict.fromkeys(shares, _of_share(answers.right, units)),
        **found,
    }


def _of_share(right: BoolArray, groups: IntArray | None) -> Interval:
    if groups is None:
        return _wilson(int(right.sum()), len(right))
    return _wilson_of_groups(right, groups)


def bootstrap(
    statistics: Mapping[str, Statistic], *, groups: IntArray, resamples: int, seed: int
) -> dict[str, Interval]:
    """95 % percentile intervals of several statistics from the same resamples.

    A resample draws as many groups as there are, with replacement; a statistic sees it as how often each
    sample was drawn.
    10,000 samples of 10 classes take half a second on one core.

    Args:
        statistics: By name.
        groups: Of each sample, shape (samples,): numbers from 0, none left out.
        resamples: How many are drawn.
        seed: The same seed gives the same intervals.

    Returns:
        Lower and upper bound by name; (None, None) for a statistic with the same value in all resamples.
    """
    if not statistics:
        return {}
    blocks = [
        [statistic(weights) for statistic in statistics.values()]
        for weights in resampled(groups, resamples, np.random.default_rng(seed))
    ]
    drawn = [np.concatenate(values) for values in zip(*blocks, strict=True)]
    return {name: _percentiles(values) for name, values in zip(statistics, drawn, strict=True)}


def resampled(groups: IntArray, resamples: int, random: np.random.Generator) -> Iterator[FloatArray]:
    """How often each sample is drawn: arrays of shape (samples, up to BLOCK).

    Args:
        groups: Of each sample, shape (samples,): numbers from 0, none left out.
        resamples: How many are drawn.
        random: Decides.
    """
    units = int(groups.max()) + 1
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        drawn = random.integers(0, units, (units, size)) * size + np.arange(size)
        counts = np.bincount(drawn.ravel(), minlength=units * size)
        yield counts.reshape(units, size).astype(np.float32)[groups]


def _percentiles(values: FloatArray) -> Interval:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(values, (tail, 100 - tail))
    return (float(low), float(high)) if low < high else (None, None)


def _wilson(correct: int, samples: int) -> tuple[float, float]:
    interval = binomtest(correct, samples).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _wilson_of_groups(right: BoolArray, groups: IntArray) -> Interval:
    """Wilson's interval of a share, for as many independent samples as would have the groups' variance.

    Where all samples are right, or all wrong, their variance says nothing: then each group counts as one.

    Args:
        right: Shape (samples,).
        groups: Of each sample, shape (samples,): numbers from 0, none left out.

    Returns:
        Lower and upper bound; none where there is one group.
    """
    samples, sizes = len(right), np.bincount(groups)
    if len(sizes) == 1:
        return None, None
    share = float(right.mean())
    deviations = np.bincount(groups, right) - share * sizes
    variance = len(sizes) / (len(sizes) - 1) * float(np.square(deviations).sum()) / samples**2
    count = min(samples, share * (1 - share) / variance) if variance else len(sizes)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(sizes) - 1))
    spread = quantile**2 / count
    center = (share + spread / 2) / (1 + spread)
    margin = (spread * (share * (1 - share) + spread / 4)) ** 0.5 / (1 + spread)
    return center - margin, center + margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much better the candidate is than the champion.

    Attributes:
        candidate: Its score.
        champion: Its score on the same images.
        low: Lower end of the interval of the difference.
        high: Upper end.
    """

    candidate: float
    champion: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The difference."""
        return self.candidate - self.champion


def gain(
    candidate: Answers,
    champion: Answers,
    metric: str,
    groups: IntArray | None = None,
    seed: int = 0,
) -> Gain:
    """The difference of a score, with its percentile interval from a paired bootstrap.

    A macro average of a resample is over the classes that occur in it.

    Args:
        candidate: Answers of shape (samples, classes).
        champion: To the same samples, in the same order.
        metric: Name of one that has a statistic.
        groups: Shape (samples,): samples with equal numbers belong together, and are drawn together; None:
            each is on its own.
        seed: The same seed gives the same interval.
    """
    statistic = METRICS[metric].statistic
    if statistic is None:
        raise ValueError(f"{metric} cannot be resampled")
    of_candidate, of_champion = statistic(candidate), statistic(champion)
    units = np.arange(len(candidate.truth)) if groups is None else np.unique(groups, return_inverse=True)[1]
    # Twice what one model's intervals take, as both are scored.
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // (2 * candidate.probabilities.size)))
    drawn = np.concatenate(
        [
            of_candidate(weights) - of_champion(weights)
            for weights in resampled(units, resamples, np.random.default_rng(seed))
        ]
    )
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(drawn, (tail, 100 - tail))
    return Gain(
        candidate=METRICS[metric].of(candidate),
        champion=METRICS[metric].of(champion),
        low=float(low),
        high=float(high),
    )


def mcnemar(candidate: BoolArray, champion: BoolArray) -> float:
    """The probability that models of equal accuracy disagree at least as one-sidedly (two-sided, exact).

    Args:
        candidate: Whether each of its answers is right, shape (samples,).
        champion: Likewise.
    """
    gained, lost = int((candidate & ~champion).sum()), int((champion & ~candidate).sum())
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
