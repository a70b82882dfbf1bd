"""What is minimised and what is measured, by the dataset's task: one class or several labels per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.reader import SplitReader
from ddpipe.errors import ParameterError
from ddpipe.train.recipe import Recipe


class Objective(Protocol):
    """A loss, and what goes with it.

    Attributes:
        metric: What tells a better model from a worse one, beside the loss; the larger, the better.
        sums: What `totals` adds up.
        on_whole_split: Whether the metric is made of all logits at once, not of `totals`.
    """

    metric: ClassVar[str]
    sums: ClassVar[tuple[str, ...]]
    on_whole_split: ClassVar[bool]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample in nats, shape (n,), of float32 logits, shape (n, classes)."""

    def totals(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """What a batch adds to each of `sums`: float64, shape (len(sums),)."""


@dataclass(frozen=True)
class CrossEntropy:
    """One class per image: cross-entropy and accuracy.

    Labels are int64, shape (n,), or shares of the classes: float32, shape (n, classes).

    Attributes:
        weights: Of each class, shape (classes,); None if all weigh the same.
        smoothing: Share of the target that is spread evenly over the classes.
    """

    metric: ClassVar[str] = "accuracy"
    sums: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    on_whole_split: ClassVar[bool] = False

    weights: Tensor | None = None
    smoothing: float = 0.0

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of each sample."""
        return cross_entropy(
            logits, labels, weight=self.weights, reduction="none", label_smoothing=self.smoothing
        )

    def totals(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss, and how many predictions are right."""
        classes = labels.argmax(1) if labels.is_floating_point() else labels
        return torch.stack([losses.double().sum(), (logits.argmax(1) == classes).double().sum()])


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Any number of labels per image: binary cross-entropy, averaged over the labels, and macro AUC.

    Labels are float32, shape (n, classes), from 0 to 1.

    Attributes:
        positive_weights: How much more a present label weighs than an absent one, shape (classes,).
    """

    metric: ClassVar[str] = "macro_auc"
    sums: ClassVar[tuple[str, ...]] = ("loss",)
    on_whole_split: ClassVar[bool] = True

    positive_weights: Tensor | None = None

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


OBJECTIVES: dict[str, type[CrossEntropy | BinaryCrossEntropy]] = {
    "multiclass": CrossEntropy,
    "multilabel": BinaryCrossEntropy,
}
"""By the names of the manifest; without arguments as validation uses them: no weights, no smoothing."""


def training_objective(
    recipe: Recipe, manifest: DatasetManifest, split: SplitReader, device: torch.device
) -> Objective:
    """What the recipe minimises on a training split.

    Raises:
        ParameterError: The recipe does not suit the task.
    """
    balanced = recipe.class_weights == "balanced"
    if manifest.task == "multilabel":
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
    """Inverse frequency of each class, scaled so that the average sample weighs 1; 0 for an absent class.

    Args:
        labels: Shape (samples,).
        classes: How many there are.
    """
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts > 0, len(labels) / (np.count_nonzero(counts) * counts.clip(1)), 0.0)


def positive_weights(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Absent over present samples for each label; 1 for a label that no sample, or every one, has.

    Args:
        labels: 0 or 1, shape (samples, classes).
    """
    present = labels.sum(0)
    absent = len(labels) - present
    return np.where(np.minimum(present, absent) > 0, absent / present.clip(1), 1.0)


def macro_auc(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve, averaged over the labels that are both present and absent in the split.

    Args:
        logits: Shape (samples, classes).
        labels: 0 or 1, of the same shape.
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - a second that others need not wait for

    defined = scorable(labels)
    return float(roc_auc_score(labels[:, defined], logits[:, defined], average="macro"))


def scorable(labels: ArrayLike) -> NDArray[np.bool_]:
    """Which labels, shape (samples, classes), are both present and absent: no other has an AUC."""
    varied: NDArray[np.bool_] = np.ptp(labels, axis=0) > 0
    return varied


def _on(device: torch.device, weights: NDArray[np.float64]) -> Tensor:
    return torch.tensor(weights, dtype=torch.float32, device=device)
