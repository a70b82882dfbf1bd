"""What a reader of the scores should know: choices that made this model worse than it could be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FEW = 100
"""Test images; with fewer, the 95 % interval of an accuracy is up to a fifth wide."""

WORSE_EPOCH = 0.05
"""Of the headline score: by how much the evaluated epoch may be worse than the best one without a warning."""


def rough(samples: int, metric: str, split: str = "test") -> Iterator[str]:
    """A warning that scores on so few images are a guess."""
    if samples < FEW:
        share = f", so each is worth {100 / samples:.1f} points of accuracy" if metric == "accuracy" else ""
        yield f"the scores are a rough guess: there are only {samples} {split} images{share}"


def warnings_about(
    views: Mapping[str, float], history: Sequence[Mapping[str, Any]], metric: str, images: int
) -> Iterator[str]:
    """Warnings about test-time views and the choice of the epoch, judged on the validation split.

    A difference that so few images make by chance is no reason for a warning.
    """
    chance = 1 / math.sqrt(max(1, images))  # half the 95 % interval of an accuracy, where it is widest
    for name, score in views.items():
        if views["plain"] - score > chance:
            yield (
                f"test_time_views {name} make the model worse: validation {metric} {score:.4f} instead of "
                f"{views['plain']:.4f}; evaluate with test_time_views plain"
            )
    key = f"validation_{metric}"
    scores = [(record[key], record.get("epoch")) for record in history if isinstance(record.get(key), float)]
    best = max(scores, key=lambda one: one[0], default=(0.0, None))
    if scores and best[0] - scores[-1][0] > max(WORSE_EPOCH, chance):
        yield (
            f"the evaluated epoch is much worse than the best: validation {metric} {scores[-1][0]:.4f} in "
            f"epoch {scores[-1][1]}, {best[0]:.4f} in epoch {best[1]}; train with model_selection best"
        )
