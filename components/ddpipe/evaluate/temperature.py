"""Calibration of probabilities by one number: logits are divided by a temperature fitted on validation.

Decisions of a multiclass model and all AUCs stay the same, as the order of probabilities does.

Sources: Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (temperature scaling); Platt, in
Advances in Large Margin Classifiers (1999), section 2.2 (targets that are not quite certain: without them, a
model that gets all validation samples right would be claimed to be certain of everything).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from ddpipe.model.tasks import BoolArray, FloatArray, Task

FEWEST = 50
"""Validation samples, below which the temperature stays 1."""

LOWEST, HIGHEST = 0.2, 10.0
"""Bounds of a temperature."""


def fitted(logits: FloatArray, truth: BoolArray, task: Task) -> float:
    """The temperature with the least cross-entropy; 1 with too few samples, or where none is better.

    Args:
        logits: Of the validation split, shape (samples, classes), finite.
        truth: Which classes each sample shows, of the same shape.
        task: How probabilities follow from logits.
    """
    samples, classes = logits.shape
    if samples < FEWEST or classes < 2:  # noqa: PLR2004 - nothing to distribute
        return 1.0
    doubt = 1 / (samples + 2)
    others = doubt / (classes - 1) if task.exclusive else doubt
    targets = np.where(truth, 1 - doubt, others)

    def loss(exponent: float) -> float:
        probabilities = task.probabilities(logits / math.exp(exponent))
        losses = targets * _log(probabilities)
        if not task.exclusive:
            losses = losses + (1 - targets) * _log(1 - probabilities)
        return -float(losses.sum(axis=1).mean())

    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return round(math.exp(found.x), 4) if found.fun < loss(0.0) else 1.0


def _log(probabilities: FloatArray) -> FloatArray:
    logs: FloatArray = np.log(np.clip(probabilities, np.finfo(np.float64).tiny, None))
    return logs
