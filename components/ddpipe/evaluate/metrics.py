"""Logits and labels -> how good the model is, and how sure we can be of that: pure functions.

Values come from scikit-learn. Intervals hold 95 %: Wilson's for accuracy, which stays honest when nothing was
wrong, and a seeded bootstrap over the samples for the others. What a split can not tell, because a class does
not occur in it, is named instead of guessed.

Sources: Wilson, JASA 22 (1927), through scipy; Efron and Tibshirani, An Introduction to the Bootstrap (1993),
chapter 13 (percentile interval); Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (ECE).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn import metrics as sklearn

from ddpipe.model.evaluation import ClassScores, Curve, Estimate, Metrics

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
Statistic = Callable[[FloatArray], FloatArray]
"""Weights of the samples, shape (samples, resamples) -> one value per resample, shape (resamples,)."""

CONFIDENCE = 0.95
BINS = 15
CURVE_POINTS = 100
# At most 1,000 resamples; fewer where samples times classes is so large that the model itself took less time.
RESAMPLES, FEWEST_RESAMPLES, BUDGET = 1000, 200, 200_000_000
# Resamples weighed together: small blocks stay in the processor's cache.
BLOCK = 32


def measure(logits: FloatArray, labels: IntArray, classes: Sequence[str], *, seed: int = 0) -> Metrics:
    """Everything that we say about a classifier on one split.

    Args:
        logits: Shape (samples, classes), finite.
        labels: Shape (samples,), values in 0..classes-1.
        classes: Names, in the order of the logits' columns; at least two.
        seed: Of the bootstrap; the same seed gives the same intervals.
    """
    predicted = logits.argmax(axis=1)
    probabilities = softmax(logits.astype(np.float64), axis=1)
    one_by_one = _class_scores(predicted, labels, classes)
    undefined = _undefined(one_by_one)
    return Metrics(
        samples=len(labels),
        scores=_scores(predicted, probabilities, labels, leave_out=undefined, seed=seed),
        undefined=undefined,
        classes=one_by_one,
        confusion_matrix=tuple(
            tuple(map(int, row))
            for row in sklearn.confusion_matrix(labels, predicted, labels=range(len(classes)))
        ),
        roc=_roc(probabilities, labels),
    )


def _scores(
    predicted: IntArray, probabilities: FloatArray, labels: IntArray, *, leave_out: Container[str], seed: int
) -> dict[str, Estimate]:
    classes = range(probabilities.shape[1])
    values: dict[str, Callable[[], float]] = {
        "accuracy": lambda: sklearn.accuracy_score(labels, predicted),
        "macro_f1": lambda: sklearn.f1_score(labels, predicted, labels=classes, average="macro"),
        "log_loss": lambda: sklearn.log_loss(labels, probabilities, labels=classes),
        "macro_auc": lambda: np.mean(
            [sklearn.roc_auc_score(labels == label, probabilities[:, label]) for label in classes]
        ),
        "calibration_error": lambda: calibration_error(probabilities, labels),
    }
    statistics = {
        "macro_f1": macro_f1(predicted, labels, len(classes)),
        "log_loss": log_loss(probabilities, labels),
        "macro_auc": macro_auc(probabilities, labels),
    }
    intervals = bootstrap(
        {name: statistic for name, statistic in statistics.items() if name not in leave_out},
        samples=len(labels),
        resamples=max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // probabilities.size)),
        seed=seed,
    )
    intervals["accuracy"] = _wilson(int((predicted == labels).sum()), len(labels))
    return {
        name: Estimate(float(value()), *intervals.get(name, (None, None)))
        for name, value in values.items()
        if name not in leave_out
    }


def _class_scores(predicted: IntArray, labels: IntArray, classes: Sequence[str]) -> tuple[ClassScores, ...]:
    columns = sklearn.precision_recall_fscore_support(
        labels, predicted, labels=range(len(classes)), zero_division=np.nan
    )
    return tuple(
        ClassScores(name, _number(precision), _number(recall), _number(f1), int(support))
        for name, precision, recall, f1, support in zip(classes, *columns, strict=True)
    )


def _undefined(classes: Sequence[ClassScores]) -> dict[str, str]:
    """The macro averages that this split can not give, each with the classes that are to blame."""
    absent = {
        "macro_f1": [scores.name for scores in classes if scores.f1 is None],
        "macro_auc": [scores.name for scores in classes if not scores.support],
    }
    return {
        metric: f"no sample of {', '.join(map(repr, names))} in this split"
        for metric, names in absent.items()
        if names
    }


def macro_f1(predicted: IntArray, labels: IntArray, classes: int) -> Statistic:
    """F1 = 2 hits / (occurrences + predictions), averaged over the classes of each resample."""
    occurs = labels == np.arange(classes)[:, None]
    chosen = predicted == np.arange(classes)[:, None]

    def statistic(weights: FloatArray) -> FloatArray:
        hits, occurrences, predictions = (
            which.astype(weights.dtype) @ weights for which in (occurs & chosen, occurs, chosen)
        )
        return _mean_of_defined(2 * hits, occurrences + predictions)

    return statistic


def log_loss(probabilities: FloatArray, labels: IntArray) -> Statistic:
    """Mean negative logarithm of the true class's probability, clipped as scikit-learn does."""
    true = probabilities[np.arange(len(labels)), labels]
    losses = -np.log(np.clip(true, np.finfo(true.dtype).eps, None))
    return lambda weights: losses @ weights / weights.sum(axis=0)


def calibration_error(probabilities: FloatArray, labels: IntArray) -> float:
    """|confidence - accuracy| in 15 equal bins of confidence, averaged by samples (ECE)."""
    confidence = probabilities.max(axis=1)
    gaps = confidence - (probabilities.argmax(axis=1) == labels)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, gaps)).sum() / len(labels))


def macro_auc(probabilities: FloatArray, labels: IntArray) -> Statistic:
    """Area under the ROC curve, one-vs-rest, averaged over the classes of each resample.

    The area is the share of (positive, negative) pairs in the right order, ties counting half
    (Hanley and McNeil, Radiology 143, 1982). A running sum of the negatives' weights, in the order of their
    scores, says how much lies below each positive: n log n once, then n per resample.
    """
    ranked = [_rank(scores, labels == number) for number, scores in enumerate(probabilities.T)]

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


def bootstrap(
    statistics: Mapping[str, Statistic], *, samples: int, resamples: int, seed: int
) -> dict[str, tuple[float | None, float | None]]:
    """95 % percentile intervals of several statistics from the same resamples.

    A resample draws `samples` samples with replacement; a statistic sees it as how often each was drawn.
    10,000 samples of 10 classes take half a second on one core.
    """
    blocks = [
        [statistic(weights) for statistic in statistics.values()]
        for weights in _resampled(samples, resamples, np.random.default_rng(seed))
    ]
    drawn = [np.concatenate(values) for values in zip(*blocks, strict=True)]
    return {name: _percentiles(values) for name, values in zip(statistics, drawn, strict=True)}


def _resampled(samples: int, resamples: int, random: np.random.Generator) -> Iterator[FloatArray]:
    """How often each sample is drawn: arrays of shape (samples, up to BLOCK)."""
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        drawn = random.integers(0, samples, (samples, size)) * size + np.arange(size)
        counts = np.bincount(drawn.ravel(), minlength=samples * size)
        yield counts.reshape(samples, size).astype(np.float32)


def _percentiles(values: FloatArray) -> tuple[float | None, float | None]:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(values, (tail, 100 - tail))
    return (float(low), float(high)) if low < high else (None, None)


def _wilson(correct: int, samples: int) -> tuple[float, float]:
    interval = binomtest(correct, samples).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _rank(
    scores: FloatArray, positive: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
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


def _roc(probabilities: FloatArray, labels: IntArray) -> Curve:
    truth = labels[:, None] == np.arange(probabilities.shape[1])
    false_positive, true_positive, thresholds = sklearn.roc_curve(truth.ravel(), probabilities.ravel())
    # The first threshold is infinite, "nothing is positive"; JSON has no infinity, and 1 says the same.
    thresholds[0] = 1.0
    last = len(thresholds) - 1
    shown = np.unique(np.linspace(0, last, min(CURVE_POINTS, last + 1)).round().astype(int))
    return Curve(
        *(tuple(map(float, points[shown])) for points in (false_positive, true_positive, thresholds))
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
