"""ROC and precision-recall curves of a split, each in at most 100 points; they are scikit-learn's.

<evaluation>/curves.json     by class, the first 200: roc and precision_recall, for programs that draw them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from sklearn import metrics as sklearn

from ddpipe.model.evaluation import Curve, Metrics
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray

FILE = "curves.json"
CURVE_POINTS = 100

MOST_CLASSES = 200
"""Whose curves are computed, the first of the dataset: their file has a few megabytes."""


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
    """The curves of each class, at most `MOST_CLASSES`, by its name.

    Args:
        logits: Divided by the temperature, shape (samples, classes).
        labels: As the split has them.
        metrics: Of the split.
    """
    task = TASKS[metrics.task]
    probabilities, truth = task.probabilities(logits), task.truth(labels, logits.shape[1])
    columns = zip(metrics.classes, truth.T, probabilities.T, strict=True)
    return {
        scores.name: ClassCurves(
            roc(shows, column) if scores.auc is not None else None,
            precision_recall(shows, column) if shows.any() else None,
        )
        for scores, shows, column in islice(columns, MOST_CLASSES)
    }


def to_plain(curves: dict[str, ClassCurves]) -> dict[str, Any]:
    """Plain values for the file."""
    return {name: asdict(one) for name, one in curves.items()}


def roc(shows: BoolArray, probabilities: FloatArray) -> Curve:
    """The ROC curve of one class, in at most 100 points; without points if it has one kind of sample only.

    Args:
        shows: Whether each sample shows the class, shape (samples,).
        probabilities: Of the class, of the same shape.
    """
    if shows.all() or not shows.any():
        return Curve((), (), ())
    false_positive, true_positive, thresholds = sklearn.roc_curve(shows, probabilities)
    # The first threshold is infinite, "nothing is positive"; JSON has no infinity, and 1 says the same.
    thresholds[0] = 1.0
    return Curve(*_thinned(false_positive, true_positive, thresholds))


def precision_recall(shows: BoolArray, probabilities: FloatArray) -> PrecisionRecall:
    """The precision-recall curve of one class.

    Args:
        shows: Whether each sample shows the class, shape (samples,); at least one does.
        probabilities: Of the class, of the same shape.
    """
    precision, recall, thresholds = sklearn.precision_recall_curve(shows, probabilities)
    # The last point, recall 0, has no threshold: nothing is said to show the class.
    ascending = (recall[::-1], precision[::-1], np.append(thresholds, 1.0)[::-1])
    return PrecisionRecall(*_thinned(*ascending))


def _thinned(*columns: FloatArray) -> Iterator[tuple[float, ...]]:
    """Of curves with more points, every so many; the first and the last stay."""
    last = len(columns[0]) - 1
    shown = np.unique(np.linspace(0, last, min(CURVE_POINTS, last + 1)).round().astype(int))
    return (tuple(map(float, points[shown])) for points in columns)
