"""Whether an exported model computes the evaluated logits: far enough for every probability and decision.

onnxruntime adds up in float32 in another order than PyTorch, so logits differ in their last digits, by more
where a network adds up many or large terms. Normalization of large feature maps shows it most: digits-cnn on
images of 160 x 200 averages 128,000 values per group. There onnxruntime is off by 3e-5 of a deviation, ten
times as much as PyTorch, all features of the group move together, and the last layer adds all of them up:
0.0005 in logits after 15 steps of training (against float64; PyTorch: 0.00001). Two results agree where the
difference

- is what rounding alone explains (rounding.py), or
- moves no probability by more than 0.001 and is small compared with the spread of the logits over the images.

Without its second half, the second condition would pass any network whose probabilities hardly depend on the
image. Away from ties, where the best probability
leads by 0.002, or a label's is 0.001 away from its threshold, decisions are then the same by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpipe.model.tasks import FloatArray, Task, Thresholds

PROBABILITY = 1e-3
"""The largest change of a probability that nobody can see."""

SPREAD_SHARE = 0.1
"""Of the standard deviation of a logit over the images."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two computations of the same logits compare.

    Attributes:
        logits: Largest difference of a logit; NaN or infinite if one of the logits is.
        probabilities: Largest difference of a probability.
        agrees: Whether they count as the same.
    """

    logits: float
    probabilities: float
    agrees: bool

    def __str__(self) -> str:
        """Both differences."""
        return f"{self.logits:.2g} in logits, {self.probabilities:.2g} in probabilities"


def agreement(
    found: FloatArray, expected: FloatArray, task: Task, *, rounding: float, spread: float
) -> Agreement:
    """Compare logits with the evaluated ones.

    Args:
        found: Of the exported model, shape (samples, classes).
        expected: Of PyTorch or of the evaluation, of the same shape; finite.
        task: How probabilities follow from logits.
        rounding: The difference that rounding explains, in logits.
        spread: How much logits vary over the images, as `spread_of` gives it.
    """
    if not np.isfinite(found).all():
        return Agreement(float("nan"), float("nan"), agrees=False)
    differences = np.abs(found - expected)
    moved = np.abs(task.probabilities(found) - task.probabilities(expected))
    invisible = (moved <= PROBABILITY) & (differences <= SPREAD_SHARE * spread)
    return Agreement(
        float(differences.max()),
        float(moved.max()),
        agrees=bool(((differences <= rounding) | invisible).all()),
    )


def spread_of(logits: FloatArray) -> float:
    """The largest standard deviation of a logit over the images, shape (samples, classes)."""
    return float(logits.std(axis=0).max())


def same_decisions(found: FloatArray, expected: FloatArray, task: Task, thresholds: Thresholds) -> int:
    """For how many samples all decisions are the same.

    Args:
        found: Logits of the exported model, shape (samples, classes).
        expected: The evaluated ones, of the same shape.
        task: How decisions follow from logits.
        thresholds: Of a multilabel model's labels.
    """
    decided, evaluated = (
        task.decisions(task.probabilities(logits), thresholds) for logits in (found, expected)
    )
    return int((decided == evaluated).all(axis=1).sum())
