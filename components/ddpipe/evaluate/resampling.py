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

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student
from threadpoolctl import threadpool_limits

from ddpipe.model.metrics import METRICS, Answers
from ddpipe.model.scores import Statistic
from ddpipe.model.tasks import BoolArray, FloatArray, IntArray

CONFIDENCE = 0.95
# At most 1,000 resamples; fewer where samples times classes is so large that the model itself took less time.
RESAMPLES, FEWEST_RESAMPLES, BUDGET = 1000, 200, 200_000_000
# Resamples weighed together: small blocks stay in the processor's cache.
BLOCK = 32

Interval = tuple[float | None, float | None]  # lower and upper bound; none where resampling shows no spread


def intervals(answers: Answers, names: Sequence[str], groups: IntArray | None) -> dict[str, Interval]:
    """The 95 % intervals of metrics by name; equal numbers in `groups`, shape (samples,), belong together."""
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
    )
    return {
        **dict.fromkeys(names, (None, None)),
        **dict.fromkeys(
            shares, wilson(answers.right) if units is None else _wilson_of_groups(answers.right, units)
        ),
        **found,
    }


def bootstrap(
    statistics: Mapping[str, Statistic], *, groups: IntArray, resamples: int
) -> dict[str, Interval]:
    """95 % percentile intervals of several statistics from the same resamples of groups, shape (samples,)."""
    if not statistics:
        return {}
    # A product of a block takes a tenth of a millisecond. On a busy machine, where a second thread waits for
    # its processor, those of 1,000 resamples took six times as long with two threads.
    with threadpool_limits(1, user_api="blas"):
        blocks = [
            [statistic(weights) for statistic in statistics.values()]
            for weights in resampled(groups, resamples)
        ]
    bounds = [_percentiles(np.concatenate(values)) for values in zip(*blocks, strict=True)]
    return {
        name: (low, high) if low < high else (None, None)
        for name, (low, high) in zip(statistics, bounds, strict=True)
    }


def resampled(groups: IntArray, resamples: int) -> Iterator[FloatArray]:
    """How often each sample is drawn, shape (samples, up to BLOCK); groups are numbered from 0 on."""
    units, random = int(groups.max()) + 1, np.random.default_rng(0)  # the same data give the same intervals
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        drawn = random.integers(0, units, (units, size)) * size + np.arange(size)
        counts = np.bincount(drawn.ravel(), minlength=units * size)
        yield counts.reshape(units, size).astype(np.float32)[groups]


def _percentiles(values: FloatArray) -> tuple[float, float]:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(values, (tail, 100 - tail))
    return float(low), float(high)


def wilson(right: BoolArray) -> tuple[float, float]:
    """Wilson's interval of a share of independent samples, from which of them are right, shape (samples,)."""
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _wilson_of_groups(right: BoolArray, groups: IntArray) -> Interval:
    """Wilson's interval of a share, for as many independent samples as have the groups' variance."""
    samples, sizes = len(right), np.bincount(groups)
    if len(sizes) == 1:
        return None, None
    share = float(right.mean())
    deviations = np.bincount(groups, right) - share * sizes
    variance = len(sizes) / (len(sizes) - 1) * float(np.square(deviations).sum()) / samples**2
    # Where all samples are right, or all wrong, their variance says nothing: each group counts as one.
    count = min(samples, share * (1 - share) / variance) if variance else len(sizes)
    spread = float(student.ppf((1 + CONFIDENCE) / 2, len(sizes) - 1)) ** 2 / count
    center = (share + spread / 2) / (1 + spread)
    margin = (spread * (share * (1 - share) + spread / 4)) ** 0.5 / (1 + spread)
    return center - margin, center + margin


def gain_interval(
    candidate: Answers, champion: Answers, metric: str, groups: IntArray | None = None
) -> tuple[float, float]:
    """The percentile interval of a score's difference, from resamples of groups, shape (samples,)."""
    statistic = METRICS[metric].statistic
    if statistic is None:
        raise ValueError(f"{metric} cannot be resampled")
    of_candidate, of_champion = statistic(candidate), statistic(champion)
    units = np.arange(len(candidate.truth)) if groups is None else np.unique(groups, return_inverse=True)[1]
    # Twice what one model's intervals take, as both are scored.
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // (2 * candidate.probabilities.size)))
    with threadpool_limits(1, user_api="blas"):  # as above
        drawn = [of_candidate(weights) - of_champion(weights) for weights in resampled(units, resamples)]
    return _percentiles(np.concatenate(drawn))


def mcnemar(candidate: BoolArray, champion: BoolArray) -> float:
    """McNemar's exact two-sided p-value, from whether each answer is right, both of shape (samples,)."""
    gained, differing = int((candidate & ~champion).sum()), int((candidate != champion).sum())
    return float(binomtest(gained, differing).pvalue) if differing else 1.0
