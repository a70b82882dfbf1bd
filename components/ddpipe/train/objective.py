"""What training minimizes, by the dataset's task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, log_softmax

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.reader import SplitReader
from ddpipe.errors import ParameterError
from ddpipe.model.tasks import TASKS
from ddpipe.train.recipe import Recipe


class Objective(Protocol):
    """A loss, and what is added up over the steps of an epoch: `sums` names what `totals` adds."""

    sums: ClassVar[tuple[str, ...]]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample in nats, shape (n,), of float32 logits, shape (n, classes)."""

    def totals(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """What a batch adds to each of `sums`: float64, shape (len(sums),); losses have shape (n,)."""


@dataclass(frozen=True)
class CrossEntropy:
    """One class per image: labels are int64, shape (n,), or shares of the classes, shape (n, classes)."""

    sums: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    weights: Tensor | None = None  # of each class, shape (classes,); None if all weigh the same
    smoothing: float = 0.0

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of each sample; its class's weight is that of the smoothed target as well.

        torch weights each class of a smoothed target by itself. With a rare class that weighs 50 times as
        much, a tenth of the target outweighs the rest: the model answers with the rare class for every image.
        """
        if self.weights is None:
            return cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        exact = cross_entropy(logits, labels, weight=self.weights, reduction="none")
        own = self.weights[labels] if labels.ndim == 1 else labels @ self.weights
        even = -log_softmax(logits, 1).mean(1)
        return (1 - self.smoothing) * exact + self.smoothing * own * even

    def totals(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss, and how many predictions are right."""
        likeliest = labels if labels.ndim == 1 else labels.argmax(1)
        return torch.stack([losses.double().sum(), (logits.argmax(1) == likeliest).double().sum()])


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Any number of labels per image, shape (n, classes), from 0 to 1: binary cross-entropy, averaged."""

    sums: ClassVar[tuple[str, ...]] = ("loss",)

    positive_weights: Tensor | None = None  # of present labels, shape (classes,); absent ones weigh 1

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The binary cross-entropy of each sample."""
        every_label = binary_cross_entropy_with_logits(
            logits, labels, reduction="none", pos_weight=self.positive_weights
        )
        return every_label.mean(1)

    def totals(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        del logits, labels
        return losses.double().sum().view(1)


def training_objective(
    recipe: Recipe, manifest: DatasetManifest, split: SplitReader, device: torch.device
) -> Objective:
    """What the recipe minimizes on a training split."""
    balanced = recipe.class_weights == "balanced"
    if not TASKS[manifest.task].exclusive:
        if recipe.label_smoothing:
            raise ParameterError(
                what="training cannot start",
                which=f"dataset {manifest.name}",
                seen=f"label_smoothing is {recipe.label_smoothing:g}, but an image may have several labels",
                do="Set label_smoothing to 0.",
            )
        return BinaryCrossEntropy(_on(device, positive_weights(split.labels)) if balanced else None)
    weights = _on(device, class_weights(split.labels, len(manifest.classes))) if balanced else None
    return CrossEntropy(weights, recipe.label_smoothing)


def class_weights(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Inverse frequency of each class of `labels`, shape (samples,); the average sample weighs 1."""
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts > 0, len(labels) / (np.count_nonzero(counts) * counts.clip(1)), 0.0)


def positive_weights(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Absent over present samples of each label, shape (samples, classes); 1 where one of them is none."""
    present = labels.sum(0)
    absent = len(labels) - present
    return np.where(np.minimum(present, absent) > 0, absent / present.clip(1), 1.0)


def _on(device: torch.device, weights: NDArray[np.float64]) -> Tensor:
    return torch.tensor(weights, dtype=torch.float32, device=device)
