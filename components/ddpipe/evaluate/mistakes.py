"""Images that a reader should see: confident mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logit

from ddpipe.data.reader import open_split
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray, Thresholds

MOST = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A wrong answer: about the class of an image, or about a label that is there or not."""

    sample_id: str
    image: npt.NDArray[np.uint8]
    true: str | None  # the class; the label, if it is there
    said: str | None  # the class that the model chose; the label, if the model says that it is there
    confidence: float  # probability of that class; that the label is there
    expected: float  # probability of the true class; the label's threshold


class WrongAnswer(NamedTuple):
    """A `Mistake` by its indices: the sample's in its split, and the classes' in the dataset."""

    sample: int
    true: int | None
    said: int | None
    confidence: float
    expected: float


def worst_mistakes(evaluation: Evaluation, classes: Sequence[str], most: int = MOST) -> list[Mistake]:
    """The wrong answers of which the model was surest, with their images."""
    found = wrong_answers(evaluation)[:most]
    samples = open_split(evaluation.subject.dataset, evaluation.subject.split)
    images = samples.images([one.sample for one in found])
    return [
        Mistake(
            sample_id=samples.sample_ids[one.sample],
            image=image,
            true=None if one.true is None else classes[one.true],
            said=None if one.said is None else classes[one.said],
            confidence=one.confidence,
            expected=one.expected,
        )
        for one, image in zip(found, images, strict=True)
    ]


def wrong_answers(evaluation: Evaluation) -> list[WrongAnswer]:
    """All wrong answers, the surest first."""
    metrics, (logits, labels) = evaluation.metrics, evaluation.calibrated()
    task = TASKS[metrics.task]
    probabilities, truth = task.probabilities(logits), task.truth(labels, logits.shape[1])
    decisions = task.decisions(probabilities, metrics.thresholds)
    if task.exclusive:
        return _wrong_classes(probabilities, truth.argmax(axis=1), decisions.argmax(axis=1))
    return _wrong_labels(probabilities, truth, decisions, metrics.thresholds)


def _wrong_classes(probabilities: FloatArray, true: IntArray, said: IntArray) -> list[WrongAnswer]:
    wrong = np.flatnonzero(true != said)
    surest = wrong[np.argsort(-probabilities[wrong, said[wrong]], kind="stable")]
    return [
        WrongAnswer(sample, true[sample], said[sample], row[said[sample]], row[true[sample]])
        for sample, row in zip(surest.tolist(), probabilities[surest], strict=True)
    ]


def _wrong_labels(
    probabilities: FloatArray, truth: BoolArray, decisions: BoolArray, thresholds: Thresholds
) -> list[WrongAnswer]:
    """By the distance from the threshold, in log-odds: a probability of 1 % is as sure as one of 99 %."""
    cuts = np.array([np.nan if one is None else one for one in thresholds])
    samples, labels = np.nonzero((truth != decisions) & ~np.isnan(cuts))
    distance = np.abs(_odds(probabilities[samples, labels]) - _odds(cuts[labels]))
    surest = np.argsort(-distance, kind="stable")
    return [
        WrongAnswer(
            sample=sample,
            true=label if truth[sample, label] else None,
            said=label if decisions[sample, label] else None,
            confidence=float(probabilities[sample, label]),
            expected=float(cuts[label]),
        )
        for sample, label in zip(samples[surest].tolist(), labels[surest].tolist(), strict=True)
    ]


def _odds(probabilities: FloatArray) -> FloatArray:
    eps = np.finfo(probabilities.dtype).eps
    odds: FloatArray = logit(probabilities.clip(eps, 1 - eps))
    return odds
