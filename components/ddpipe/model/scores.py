"""Answers -> scores: of all samples, and of many resamples at once. Areas under curves are scikit-learn's.

A statistic takes how often each sample was drawn. So sorting, which does not depend on that, is done once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Thresholds = Sequence[float | None]  # one per label; None where none could be chosen

Statistic = Callable[[FloatArray], FloatArray]
"""Weights of the samples, shape (samples, resamples) -> one value per resample, shape (resamples,)."""

BINS = 15


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """What became of `count` claims of about the same probability: how often they came true."""

    confidence: float
    frequency: float
    count: int


def mean(values: FloatArray) -> Statistic:
    """The mean over the samples of each resample, of values of shape (samples,)."""
    return lambda weights: values @ weights / weights.sum(axis=0)


def macro_ratio(numerators: FloatArray, denominators: FloatArray) -> Statistic:
    """The ratio of two sums, shape (samples, classes), averaged over the classes that have one."""

    def statistic(weights: FloatArray) -> FloatArray:
        above, below = (one.T.astype(weights.dtype) @ weights for one in (numerators, denominators))
        return _mean_of_defined(above, below)

    return statistic


def macro_f1(decisions: BoolArray, truth: BoolArray) -> Statistic:
    """F1 = 2 hits / (occurrences + predictions), averaged over classes; both of shape (samples, classes)."""
    return macro_ratio(np.float32(2) * (truth & decisions), truth.astype(np.float32) + decisions)


def class_aucs(scores: FloatArray, truth: BoolArray) -> tuple[float | None, ...]:
    """Area under the ROC curve of each class, shape (samples, classes); None if all or none show it."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - takes a second to import; not all need it

    return tuple(
        float(roc_auc_score(shows, column)) if shows.any() and not shows.all() else None
        for column, shows in zip(scores.T, truth.T, strict=True)
    )


def class_precisions(probabilities: FloatArray, truth: BoolArray) -> tuple[float | None, ...]:
    """Average precision of each class, both of shape (samples, classes); None if no sample shows it."""
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 - as above

    return tuple(
        float(average_precision_score(shows, column)) if shows.any() else None
        for column, shows in zip(probabilities.T, truth.T, strict=True)
    )


def average(values: Iterable[float | None]) -> float:
    """The mean of those that exist; NaN if there is none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else math.nan


def resampled_macro_auc(probabilities: FloatArray, truth: BoolArray) -> Statistic:
    """The mean of the classes' AUCs, of many resamples at once; arrays have shape (samples, classes).

    The share of (positive, negative) pairs in the right order, ties counting half (Hanley and McNeil, 1982),
    by one sort for all resamples and a running sum of the negatives' weights.
    """
    ranked = [_rank(scores, shows) for scores, shows in zip(probabilities.T, truth.T, strict=True)]

    def statistic(weights: FloatArray) -> FloatArray:
        ordered, pairs = [], []
        for positives, negatives, lower, lower_or_tied in ranked:
            below = np.zeros((len(negatives) + 1, weights.shape[1]), weights.dtype)
            np.cumsum(weights[negatives], axis=0, out=below[1:])
            positive = weights[positives]
            ordered.append((positive * (below[lower] + below[lower_or_tied])).sum(axis=0) / 2)
            pairs.append(positive.sum(axis=0) * below[-1])
        return _mean_of_defined(np.stack(ordered), np.stack(pairs))

    return statistic


def macro_average_precision(probabilities: FloatArray, truth: BoolArray) -> Statistic:
    """scikit-learn's average precision, tied samples sharing theirs; arrays have shape (samples, classes)."""
    ranked = []
    for scores, shows in zip(probabilities.T, truth.T, strict=True):
        order = np.argsort(-scores)
        positives = np.flatnonzero(shows[order])
        ends = np.searchsorted(-scores[order], -scores[order][positives], side="right") - 1
        ranked.append((order, shows[order], positives, ends))

    def statistic(weights: FloatArray) -> FloatArray:
        precisions, totals = [], []
        for order, shows, positives, ends in ranked:
            ordered = weights[order]
            found = np.cumsum(ordered, axis=0)[ends]
            hits = np.cumsum(ordered * shows[:, None], axis=0)[ends]
            # Where no sample was drawn down to here, the positive itself was not either: its weight is 0.
            precision = np.divide(hits, found, out=np.zeros_like(hits), where=found > 0)
            precisions.append((ordered[positives] * precision).sum(axis=0))
            totals.append(ordered[positives].sum(axis=0))
        return _mean_of_defined(np.stack(precisions), np.stack(totals))

    return statistic


def calibration(claimed: FloatArray, came_true: BoolArray) -> tuple[CalibrationBin, ...]:
    """Predictions in 15 equal bins of probability, 1 in the last; both arrays have shape (n,)."""
    bins = np.minimum((claimed * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins)
    sums = np.bincount(bins, claimed), np.bincount(bins, came_true)
    return tuple(
        CalibrationBin(float(confidence / count), float(frequency / count), int(count))
        for confidence, frequency, count in zip(*sums, counts, strict=True)
        if count
    )


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """|confidence - frequency|, averaged by claims (ECE)."""
    gaps = [one.count * abs(one.confidence - one.frequency) for one in bins]
    return sum(gaps) / sum(one.count for one in bins)


def _rank(scores: FloatArray, positive: BoolArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Positives; negatives by score; for each positive, how many negatives are lower, and lower or tied."""
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
    negatives = negatives[np.argsort(scores[negatives])]
    lower, lower_or_tied = (
        np.searchsorted(scores[negatives], scores[positives], side) for side in ("left", "right")
    )
    return positives, negatives, lower, lower_or_tied


def _mean_of_defined(numerators: FloatArray, denominators: FloatArray) -> FloatArray:
    """Mean over axis 0 of the ratios that exist; NaN where none does."""
    with np.errstate(invalid="ignore"):
        ratios = numerators / denominators
        exists = denominators > 0
        means: FloatArray = np.where(exists, ratios, 0).sum(axis=0) / exists.sum(axis=0)
        return means
