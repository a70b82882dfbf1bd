"""Logits and labels -> how good the model is, and how sure we can be of that: pure functions.

For both tasks a split becomes three tables of one row per sample and one column per class: what is
true, what the model thinks probable, what it decides (model/tasks.py). Areas and curves are scikit-learn's.
Intervals hold 95 %: Wilson's for accuracy, which stays honest when nothing was wrong, and a seeded bootstrap
for the others. Where samples belong together, such as the images of one patient, groups of them are drawn,
not samples: ten images of one patient say little more than one. A score that a split does not define, because
a class does not occur in it, is named instead of guessed.

Sources: Wilson, JASA 22 (1927), through scipy; for groups with the effective sample size of Korn and
Graubard, Survey Methodology 24 (1998); Efron and Tibshirani, An Introduction to the Bootstrap (1993),
chapter 13 (percentile interval); Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (ECE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student
from sklearn import metrics as sklearn

from ddpipe.evaluate.curves import roc
from ddpipe.model.evaluation import CalibrationBin, ClassScores, Estimate, Metrics
from ddpipe.model.tasks import (
    TASKS,
    BoolArray,
    FloatArray,
    IntArray,
    Task,
    Thresholds,
    class_aucs,
    macro_auc,
)

Statistic = Callable[[FloatArray], FloatArray]
"""Weights of the samples, shape (samples, resamples) -> one value per resample, shape (resamples,)."""

CONFIDENCE = 0.95
BINS = 15
# At most 1,000 resamples; fewer where samples times classes is so large that the model itself took less time.
RESAMPLES, FEWEST_RESAMPLES, BUDGET = 1000, 200, 200_000_000
# Resamples weighed together: small blocks stay in the processor's cache.
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Answers:
    """A split's samples (rows) by classes (columns).

    Attributes:
        truth: Whether the sample shows the class.
        probabilities: That it does, as the model sees it.
        decisions: Whether the model says that it does.
        losses: Cross-entropy of each sample, in nats.
        bins: Calibration, over all samples of the split.
    """

    truth: BoolArray
    probabilities: FloatArray
    decisions: BoolArray
    losses: FloatArray
    bins: tuple[CalibrationBin, ...]

    @property
    def right(self) -> BoolArray:
        """Whether a sample's decisions are all right, shape (samples,)."""
        same: BoolArray = (self.truth == self.decisions).all(axis=1)
        return same

    def of_samples(self, chosen: BoolArray) -> Answers:
        """These answers to some of the samples.

        Args:
            chosen: Which ones, shape (samples,).
        """
        return replace(
            self,
            truth=self.truth[chosen],
            probabilities=self.probabilities[chosen],
            decisions=self.decisions[chosen],
            losses=self.losses[chosen],
        )

    def of_classes(self, chosen: BoolArray) -> Answers:
        """These answers about some of the classes; losses and bins stay those of all.

        Args:
            chosen: Which ones, shape (classes,).
        """
        return replace(
            self,
            truth=self.truth[:, chosen],
            probabilities=self.probabilities[:, chosen],
            decisions=self.decisions[:, chosen],
        )

    @classmethod
    def of(cls, task: Task, logits: FloatArray, labels: IntArray, thresholds: Thresholds) -> Answers:
        """Logits and labels as the task interprets them.

        Args:
            task: Of the dataset.
            logits: Shape (samples, classes), finite.
            labels: Multiclass: class indices, shape (samples,). Multilabel: 0 or 1, shape (samples, classes).
            thresholds: Multilabel: probability from which each label counts as present. Multiclass: not used.
        """
        probabilities = task.probabilities(logits)
        truth = task.truth(labels, logits.shape[1])
        return cls(
            truth=truth,
            probabilities=probabilities,
            decisions=task.decisions(probabilities, thresholds),
            losses=task.losses(probabilities, truth),
            bins=calibration(*task.claims(probabilities, truth)),
        )


def measure(
    logits: FloatArray,
    labels: IntArray,
    classes: Sequence[str],
    *,
    task: str = "multiclass",
    thresholds: Thresholds | None = None,
    groups: IntArray | None = None,
    seed: int = 0,
) -> Metrics:
    """Everything that we say about a model on one split.

    Args:
        logits: Shape (samples, classes), finite.
        labels: Multiclass: shape (samples,), values in 0..classes-1. Multilabel: 0 or 1, shape
            (samples, classes).
        classes: Names, in the order of the logits' columns.
        task: "multiclass" or "multilabel".
        thresholds: Multilabel: of each label, as `best_thresholds` chose them on another split.
        groups: Shape (samples,): samples with equal numbers belong together; None: each is on its own.
        seed: Of the bootstrap; the same seed gives the same intervals.
    """
    kind, cuts = TASKS[task], thresholds or [None] * len(classes)
    answers = Answers.of(kind, logits, labels, cuts)
    one_by_one = _class_scores(answers, classes, cuts, exclusive=kind.exclusive)
    undefined = _undefined(kind, one_by_one, len(labels))
    defined = [name for name in kind.scores if name not in undefined]
    together = None if groups is None else np.unique(groups, return_inverse=True)[1]
    values, intervals = _values(answers, one_by_one, defined), _intervals(answers, defined, together, seed)
    return Metrics(
        task=task,
        samples=len(labels),
        scores={name: Estimate(values[name], *intervals[name]) for name in defined},
        undefined=undefined,
        classes=one_by_one,
        confusion_matrix=_confusion_matrix(answers) if kind.exclusive else (),
        roc=roc(answers.truth.ravel(), answers.probabilities.ravel()),
        calibration=answers.bins,
        groups=0 if together is None else int(together.max()) + 1,
    )


def best_thresholds(probabilities: FloatArray, truth: BoolArray) -> tuple[float | None, ...]:
    """For each label the threshold with the best F1, halfway to the next lower probability of a sample.

    None for a label that no sample shows: any threshold is as good there.

    Args:
        probabilities: Of a split that the model is not judged by, shape (samples, labels).
        truth: Of the same shape.
    """
    return tuple(
        _best_threshold(column, shows) if shows.any() else None
        for column, shows in zip(probabilities.T, truth.T, strict=True)
    )


def _best_threshold(probabilities: FloatArray, shows: BoolArray) -> float:
    precision, recall, levels = sklearn.precision_recall_curve(shows, probabilities)
    product, total = 2 * precision[:-1] * recall[:-1], precision[:-1] + recall[:-1]
    best = int(np.divide(product, total, out=np.zeros_like(total), where=total > 0).argmax())
    return float((levels[best] + (levels[best - 1] if best else 0)) / 2)


def _class_scores(
    answers: Answers, classes: Sequence[str], thresholds: Thresholds, *, exclusive: bool
) -> tuple[ClassScores, ...]:
    aucs = class_aucs(answers.probabilities, answers.truth)
    columns = zip(answers.truth.T, answers.probabilities.T, answers.decisions.T, strict=True)
    return tuple(
        ClassScores(
            name=name,
            support=int(shows.sum()),
            auc=auc,
            average_precision=(
                float(sklearn.average_precision_score(shows, probabilities)) if shows.any() else None
            ),
            threshold=threshold,
            **(_decided(shows, said) if exclusive or threshold is not None else {}),
        )
        for name, threshold, auc, (shows, probabilities, said) in zip(
            classes, thresholds, aucs, columns, strict=True
        )
    )


def _decided(shows: BoolArray, said: BoolArray) -> dict[str, float | None]:
    """Precision, recall and F1 of one class."""
    hits, occurrences, said_so = int((shows & said).sum()), int(shows.sum()), int(said.sum())
    return {
        "precision": hits / said_so if said_so else None,
        "recall": hits / occurrences if occurrences else None,
        "f1": 2 * hits / (occurrences + said_so) if occurrences + said_so else None,
    }


def _undefined(task: Task, classes: Sequence[ClassScores], samples: int) -> dict[str, str]:
    """The macro averages that this split cannot give, each with the classes that are to blame."""
    absent = [scores.name for scores in classes if not scores.support]
    everywhere = [scores.name for scores in classes if scores.support == samples]
    uncut = [scores.name for scores in classes if not task.exclusive and scores.threshold is None]
    silent = [scores.name for scores in classes if scores.f1 is None and scores.name not in uncut]
    reasons = {
        "macro_auc": {
            "no sample of {} in this split": absent,
            "no sample without {} in this split": everywhere,
        },
        "macro_average_precision": {"no sample of {} in this split": absent},
        "macro_f1": {
            "no sample of {} in this split": silent,
            "no sample of {} in the validation split to choose a threshold by": uncut,
        },
    }
    found = {
        metric: "; ".join(
            reason.format(", ".join(map(repr, names))) for reason, names in blamed.items() if names
        )
        for metric, blamed in reasons.items()
        if metric in task.scores
    }
    return {metric: reason for metric, reason in found.items() if reason}


def _values(answers: Answers, classes: Sequence[ClassScores], names: Sequence[str]) -> dict[str, float]:
    """The scores with these names."""
    values: dict[str, Callable[[], float]] = {
        "accuracy": answers.right.mean,
        "macro_f1": lambda: _average(one.f1 for one in classes),
        "log_loss": answers.losses.mean,
        "macro_auc": lambda: macro_auc(one.auc for one in classes),
        "macro_average_precision": lambda: _average(one.average_precision for one in classes),
        "calibration_error": lambda: calibration_error(answers.bins),
    }
    return {name: float(values[name]()) for name in names}


def _average(values: Iterable[float | None]) -> float:
    return float(np.array(list(values), np.float64).mean())


def _intervals(
    answers: Answers, names: Sequence[str], groups: IntArray | None, seed: int
) -> dict[str, tuple[float | None, float | None]]:
    """The intervals of the scores with these names."""
    truth, probabilities = answers.truth, answers.probabilities
    statistics: dict[str, Callable[[], Statistic]] = {
        "macro_f1": lambda: macro_f1(answers.decisions, truth),
        "log_loss": lambda: mean(answers.losses),
        "macro_auc": lambda: resampled_macro_auc(probabilities, truth),
        "macro_average_precision": lambda: macro_average_precision(probabilities, truth),
    }
    intervals = bootstrap(
        {name: statistics[name]() for name in names if name in statistics},
        groups=np.arange(len(truth)) if groups is None else groups,
        resamples=max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // probabilities.size)),
        seed=seed,
    )
    accuracy = _interval_of_accuracy(answers, groups)
    return {"accuracy": accuracy, "calibration_error": (None, None), **intervals}


def interval_of(
    metric: str, answers: Answers, groups: IntArray | None, seed: int = 0
) -> tuple[float | None, float | None]:
    """The 95 % interval of one score.

    Args:
        metric: Its name.
        answers: To at least one sample.
        groups: Shape (samples,): samples with equal numbers belong together; None: each is on its own.
        seed: The same seed gives the same interval.
    """
    together = None if groups is None else np.unique(groups, return_inverse=True)[1]
    if metric == "accuracy":
        return _interval_of_accuracy(answers, together)
    return _intervals(answers, [metric], together, seed)[metric]


def _interval_of_accuracy(answers: Answers, groups: IntArray | None) -> tuple[float | None, float | None]:
    if groups is None:
        return _wilson(int(answers.right.sum()), len(answers.truth))
    return _wilson_of_groups(answers.right, groups)


def macro_f1(decisions: BoolArray, truth: BoolArray) -> Statistic:
    """F1 = 2 hits / (occurrences + predictions), averaged over the classes of each resample.

    Args:
        decisions: Which classes were predicted, shape (samples, classes).
        truth: Which classes each sample shows, of the same shape.
    """

    def statistic(weights: FloatArray) -> FloatArray:
        hits, occurrences, predictions = (
            which.T.astype(weights.dtype) @ weights for which in (truth & decisions, truth, decisions)
        )
        return _mean_of_defined(2 * hits, occurrences + predictions)

    return statistic


def mean(values: FloatArray) -> Statistic:
    """The mean over the samples of each resample, of values of shape (samples,)."""
    return lambda weights: values @ weights / weights.sum(axis=0)


def calibration(claimed: FloatArray, came_true: BoolArray) -> tuple[CalibrationBin, ...]:
    """Predictions in 15 equal bins of probability; a probability of 1 belongs to the last.

    Args:
        claimed: Probabilities of predictions, shape (n,).
        came_true: Whether each prediction was right, of the same shape.
    """
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


def resampled_macro_auc(probabilities: FloatArray, truth: BoolArray) -> Statistic:
    """`tasks.macro_auc` of each resample: of many at once, where scikit-learn sorts again for each.

    The area is the share of (positive, negative) pairs in the right order, ties counting half
    (Hanley and McNeil, Radiology 143, 1982). A running sum of the negatives' weights, in the order of their
    scores, says how much lies below each positive: n log n once, then n per resample.

    Args:
        probabilities: Shape (samples, classes).
        truth: Which classes each sample shows, of the same shape.
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
    """Precision at each positive's probability, averaged over the positives, then over the classes.

    The precision at a probability is the share of positives among all samples that have at least as much;
    tied samples share theirs. That is scikit-learn's sum over the steps of the precision-recall curve.

    Args:
        probabilities: Shape (samples, classes).
        truth: Which classes each sample shows, of the same shape.
    """
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


def bootstrap(
    statistics: Mapping[str, Statistic], *, groups: IntArray, resamples: int, seed: int
) -> dict[str, tuple[float | None, float | None]]:
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


def _percentiles(values: FloatArray) -> tuple[float | None, float | None]:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(values, (tail, 100 - tail))
    return (float(low), float(high)) if low < high else (None, None)


def _wilson(correct: int, samples: int) -> tuple[float, float]:
    interval = binomtest(correct, samples).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _wilson_of_groups(right: BoolArray, groups: IntArray) -> tuple[float | None, float | None]:
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


def _confusion_matrix(answers: Answers) -> tuple[tuple[int, ...], ...]:
    true, predicted = answers.truth.argmax(axis=1), answers.decisions.argmax(axis=1)
    counts = sklearn.confusion_matrix(true, predicted, labels=range(answers.truth.shape[1]))
    return tuple(tuple(map(int, row)) for row in counts)
