"""What the tasks mean: from logits to probabilities, from probabilities to decisions, how both are judged.

A multiclass model chooses one class for an image: softmax, the largest. A multilabel model answers yes or no
to each label: sigmoid, at least the label's threshold. Everything else that is said about a model is said one
class against all others, from a table of truths and a table of probabilities, and is the same for both tasks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ddpipe.model import scores
from ddpipe.model.metrics import METRICS, MULTICLASS, MULTILABEL, Answers, metrics_of

# The names of the arrays, for all who use a task.
FloatArray = scores.FloatArray
IntArray = scores.IntArray
BoolArray = scores.BoolArray
Thresholds = scores.Thresholds


class Task(ABC):
    """A kind of question that a model answers."""

    name: ClassVar[str]  # as in a dataset's manifest
    activation: ClassVar[str]  # what turns logits into probabilities: "softmax" or "sigmoid"
    exclusive: ClassVar[bool]  # whether an image shows exactly one of the classes
    scores: ClassVar[tuple[str, ...]]  # names of the scores on a split; models are compared by the first

    @abstractmethod
    def probabilities(self, logits: FloatArray) -> FloatArray:
        """Probabilities, float64, of logits; both of shape (samples, classes)."""

    @abstractmethod
    def truth(self, labels: IntArray, classes: int) -> BoolArray:
        """Which classes each sample shows, shape (samples, classes), from the labels of a split."""

    @abstractmethod
    def decisions(self, probabilities: FloatArray, thresholds: Thresholds) -> BoolArray:
        """Which classes the model predicts for each sample, shape (samples, classes)."""

    @abstractmethod
    def losses(self, probabilities: FloatArray, truth: BoolArray) -> FloatArray:
        """Cross-entropy of each sample in nats, shape (samples,); clipped as scikit-learn does."""

    def headline(self, logits: FloatArray, truth: BoolArray) -> float:
        """The first of `scores`, the larger the better; of finite logits, shape (samples, classes)."""
        # Logits have the order of the probabilities, which in float64 are all 1 from a logit of 37 on.
        answers = Answers.judged(self, logits, truth, [None] * logits.shape[1])
        return METRICS[self.scores[0]].measured(answers)

    def validation(self, logits: FloatArray, labels: IntArray) -> dict[str, float]:
        """How good a model is after an epoch: its "loss" in nats, and its headline score by that name.

        Logits have the shape (samples, classes). With NaN or infinity the loss is NaN, and the score 0.
        """
        truth = self.truth(labels, logits.shape[1])
        known = bool(np.isfinite(logits).all())
        loss = float(self.losses(self.probabilities(logits), truth).mean()) if known else math.nan
        return {"loss": loss, self.scores[0]: self.headline(logits, truth) if known else 0.0}

    @abstractmethod
    def claims(self, probabilities: FloatArray, truth: BoolArray) -> tuple[FloatArray, BoolArray]:
        """Probabilities of predictions, and whether each was right, both of shape (n,)."""


class Multiclass(Task):
    """Exactly one class for each image."""

    name = MULTICLASS
    activation = "softmax"
    exclusive = True
    scores = metrics_of(MULTICLASS)

    def probabilities(self, logits: FloatArray) -> FloatArray:
        """Softmax over the classes."""
        # numpy only: scipy would be a third of the predictor's image.
        odds = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares: FloatArray = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def truth(self, labels: IntArray, classes: int) -> BoolArray:
        """One true class in each row; labels are indices of classes, shape (samples,)."""
        truth: BoolArray = labels[:, None] == np.arange(classes)
        return truth

    def decisions(self, probabilities: FloatArray, _thresholds: Thresholds = ()) -> BoolArray:
        """The most probable class of each row."""
        return self.truth(probabilities.argmax(axis=1), probabilities.shape[1])

    def losses(self, probabilities: FloatArray, truth: BoolArray) -> FloatArray:
        """Of the true class."""
        return _nats(probabilities[truth])

    def claims(self, probabilities: FloatArray, truth: BoolArray) -> tuple[FloatArray, BoolArray]:
        """The probability of the predicted class, and whether it was right."""
        chosen = probabilities.argmax(axis=1)
        rows = np.arange(len(probabilities))
        return probabilities[rows, chosen], truth[rows, chosen]


class Multilabel(Task):
    """Any number of labels for each image, each a question of its own."""

    name = MULTILABEL
    activation = "sigmoid"
    exclusive = False
    scores = metrics_of(MULTILABEL)

    def probabilities(self, logits: FloatArray) -> FloatArray:
        """Sigmoid of each label."""
        return np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))

    def truth(self, labels: IntArray, classes: int) -> BoolArray:
        """Labels are 0 or 1, shape (samples, classes)."""
        truth: BoolArray = labels.reshape(-1, classes) == 1
        return truth

    def decisions(self, probabilities: FloatArray, thresholds: Thresholds) -> BoolArray:
        """Where the label's threshold is reached; nowhere for a label without one."""
        reached: BoolArray = probabilities >= [np.inf if one is None else one for one in thresholds]
        return reached

    def losses(self, probabilities: FloatArray, truth: BoolArray) -> FloatArray:
        """Binary cross-entropy, the mean over the labels."""
        losses: FloatArray = _nats(np.where(truth, probabilities, 1 - probabilities)).mean(axis=1)
        return losses

    def claims(self, probabilities: FloatArray, truth: BoolArray) -> tuple[FloatArray, BoolArray]:
        """Every label of every sample."""
        return probabilities.ravel(), truth.ravel()


def _nats(probabilities: FloatArray) -> FloatArray:
    losses: FloatArray = -np.log(np.clip(probabilities, np.finfo(probabilities.dtype).eps, None))
    return losses


TASKS: Mapping[str, Task] = {task.name: task for task in (Multiclass(), Multilabel())}
"""By the names in a dataset's manifest."""
