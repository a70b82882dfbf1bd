"""Logits and labels -> how good the model is, and its curves: pure functions.

For both tasks a split becomes three tables of one row per sample and one column per class: what is true, what
the model thinks probable, what it decides (model/metrics.py). A score that a split does not define, because a
class does not occur in it, is named instead of guessed.

Logits are divided by a temperature that is fitted on the validation split, if it helps there on samples that
it was not fitted on. Decisions of a multiclass model
and all AUCs stay the same, as the order of probabilities does.

Sources: Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (temperature, ECE); Platt, in
Advances in Large Margin Classifiers (1999), section 2.2 (targets that are not quite certain: without them, a
model that gets all validation samples right would be claimed to be certain of everything).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn import metrics as sklearn

from ddpipe.evaluate.resampling import intervals
from ddpipe.model.evaluation import ClassScores, Curve, Estimate, Metrics
from ddpipe.model.metrics import METRICS, Answers
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray, Task, Thresholds

FEWEST = 20  # validation samples, below which the temperature stays 1
FOLDS = 5  # parts of the validation split: a temperature that is fitted on the others is tried on each
LOWEST, HIGHEST = 0.2, 10.0  # bounds of a temperature
RARE = 0.2  # of an even share of the samples: a class with less makes balanced accuracy the score that counts
CURVE_POINTS = 100


def measure(
    logits: FloatArray,
    labels: IntArray,
    classes: Sequence[str],
    *,
    task: str = "multiclass",
    thresholds: Thresholds | None = None,
    groups: IntArray | None = None,
) -> Metrics:
    """All we say about a model on one split; arrays have shape (samples, ...), equal groups are one."""
    kind, cuts = TASKS[task], thresholds or [None] * len(classes)
    answers = Answers.of(kind, logits, labels, cuts)
    undefined = {name: reason for name in kind.scores if (reason := METRICS[name].missing(answers, classes))}
    defined = [name for name in kind.scores if name not in undefined]
    rarest = answers.truth.sum(axis=0).min() * len(classes) / len(labels)
    if kind.exclusive and rarest < RARE and "balanced_accuracy" in defined:
        # Where nearly all images are "ok", so is nearly every answer: accuracy hides what was missed.
        defined.sort(key=lambda name: name != "balanced_accuracy")
    found = intervals(answers, defined, groups)
    return Metrics(
        task=task,
        samples=len(labels),
        scores={name: Estimate(METRICS[name].measured(answers), *found[name]) for name in defined},
        undefined=undefined,
        classes=_class_scores(answers, classes, cuts),
        confusion_matrix=_confusion_matrix(answers) if kind.exclusive else (),
        roc=roc(answers.truth.ravel(), answers.probabilities.ravel()),
        calibration=answers.bins,
        groups=0 if groups is None else len(np.unique(groups)),
    )


def unproven(metrics: Metrics) -> Iterator[str]:
    """A warning that a model is not clearly better than one that does not look at the image."""
    name, known = metrics.headline, metrics.baseline
    score = metrics.scores.get(name)
    if score is None or name not in known:
        return
    low = score.value if score.low is None else score.low
    if low <= known[name]:
        constant = (
            f"always answering {metrics.commonest.name!r}" if METRICS[name].is_share else "a constant answer"
        )
        yield (
            f"{METRICS[name].title} {score.value:.4f} is not clearly better than {known[name]:.4f}, which "
            f"{constant} gives: "
            + (
                "add images, as those of this split are too few to show it"
                if score.value > known[name]
                else "add images of the classes that are confused, or train longer"
            )
        )


def _class_scores(
    answers: Answers, classes: Sequence[str], thresholds: Thresholds
) -> tuple[ClassScores, ...]:
    columns = zip(answers.truth.T, answers.decisions.T, answers.uncut, strict=True)
    return tuple(
        ClassScores(
            name=name,
            support=int(shows.sum()),
            auc=auc,
            average_precision=precision,
            threshold=threshold,
            **({} if uncut else _decided(shows, said)),
        )
        for name, threshold, auc, precision, (shows, said, uncut) in zip(
            classes, thresholds, answers.aucs, answers.average_precisions, columns, strict=True
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


def _confusion_matrix(answers: Answers) -> tuple[tuple[int, ...], ...]:
    true, predicted = answers.truth.argmax(axis=1), answers.decisions.argmax(axis=1)
    counts = sklearn.confusion_matrix(true, predicted, labels=range(answers.truth.shape[1]))
    return tuple(tuple(map(int, row)) for row in counts)


@dataclass(frozen=True, slots=True)
class PrecisionRecall:
    """Points of a precision-recall curve, from the highest threshold to the lowest."""

    recall: tuple[float, ...]
    precision: tuple[float, ...]
    threshold: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClassCurves:
    """The curves of one class against all others; None where the split defines none."""

    roc: Curve | None
    precision_recall: PrecisionRecall | None


def class_curves(logits: FloatArray, labels: IntArray, metrics: Metrics) -> dict[str, ClassCurves]:
    """The curves of each class by its name; logits of shape (samples, classes), already scaled."""
    task = TASKS[metrics.task]
    probabilities, truth = task.probabilities(logits), task.truth(labels, logits.shape[1])
    columns = zip(metrics.classes, truth.T, probabilities.T, strict=True)
    return {
        scores.name: ClassCurves(
            roc(shows, column) if scores.auc is not None else None,
            precision_recall(shows, column) if shows.any() else None,
        )
        for scores, shows, column in columns
    }


def roc(shows: BoolArray, probabilities: FloatArray) -> Curve:
    """The ROC curve of one class, both of shape (samples,); without points if all samples are of one kind."""
    if shows.all() or not shows.any():
        return Curve((), (), ())
    false_positive, true_positive, thresholds = sklearn.roc_curve(shows, probabilities)
    # The first threshold is infinite, "nothing is positive"; JSON has no infinity, and 1 says the same.
    thresholds[0] = 1.0
    return Curve(*_thinned(false_positive, true_positive, thresholds))


def precision_recall(shows: BoolArray, probabilities: FloatArray) -> PrecisionRecall:
    """The precision-recall curve of one class that at least one sample shows, both of shape (samples,)."""
    precision, recall, thresholds = sklearn.precision_recall_curve(shows, probabilities)
    # The last point, recall 0, has no threshold: nothing is said to show the class.
    ascending = (recall[::-1], precision[::-1], np.append(thresholds, 1.0)[::-1])
    return PrecisionRecall(*_thinned(*ascending))


def _thinned(*columns: FloatArray) -> Iterator[tuple[float, ...]]:
    """Of curves with more points, every so many; the first and the last stay."""
    last = len(columns[0]) - 1
    shown = np.unique(np.linspace(0, last, CURVE_POINTS).round().astype(int))
    return (tuple(map(float, points[shown])) for points in columns)


def best_thresholds(probabilities: FloatArray, truth: BoolArray) -> tuple[float | None, ...]:
    """The threshold of each label with the best F1, None if no sample shows it; shape (samples, labels)."""
    return tuple(
        _best_threshold(column, shows) if shows.any() else None
        for column, shows in zip(probabilities.T, truth.T, strict=True)
    )


def _best_threshold(probabilities: FloatArray, shows: BoolArray) -> float:
    precision, recall, levels = sklearn.precision_recall_curve(shows, probabilities)
    # F1 is twice the ratio of these; the last point, which has no threshold, has recall 0.
    product, total = precision * recall, precision + recall
    best = int(np.divide(product, total, out=np.zeros_like(total), where=total > 0).argmax())
    return float((levels[best] + (levels[best - 1] if best else 0)) / 2)


def fitted(logits: FloatArray, truth: BoolArray, task: Task, groups: IntArray | None = None) -> float:
    """The temperature of logits, shape (samples, classes); 1 unless it helps those it is not fitted on."""
    samples, classes = logits.shape
    if samples < FEWEST or classes < 2:  # noqa: PLR2004 - nothing to distribute
        return 1.0
    folds = (np.arange(samples) if groups is None else groups) % FOLDS
    gains = np.zeros(samples)
    for fold in set(folds.tolist()):
        others, own = folds != fold, folds == fold
        if others.any():
            scale = _least(logits[others], truth[others], task)
            plain, scaled = (task.probabilities(logits[own] / one) for one in (1.0, scale))
            gains[own] = task.losses(plain, truth[own]) - task.losses(scaled, truth[own])
    # What may be chance is taken off, as by James and Stein: within one standard error nothing is left.
    gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(samples)
    if gain <= error:
        return 1.0
    shrunk: float = _least(logits, truth, task) ** (1 - (error / gain) ** 2)
    return round(shrunk, 4)


def _least(logits: FloatArray, truth: BoolArray, task: Task) -> float:
    """The temperature with the least cross-entropy on these samples, whose truth is not quite certain."""
    samples, classes = logits.shape
    doubt = 1 / (samples + 2)
    targets = np.where(truth, 1 - doubt, doubt / (classes - 1) if task.exclusive else doubt)

    def log(probabilities: FloatArray) -> FloatArray:
        logs: FloatArray = np.log(np.clip(probabilities, np.finfo(np.float64).tiny, None))
        return logs

    def loss(exponent: float) -> float:
        probabilities = task.probabilities(logits / math.exp(exponent))
        losses = targets * log(probabilities)
        if not task.exclusive:
            losses = losses + (1 - targets) * log(1 - probabilities)
        return -float(losses.sum(axis=1).mean())

    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return math.exp(found.x)
