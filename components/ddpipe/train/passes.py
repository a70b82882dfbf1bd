"""How often a training sees its images, and what a pass over them costs on two cores of a CPU.

40 images          40 passes    further ones cost time and gain nothing
800 photographs    22 passes    a minute on two cores
2,400 images       30 passes    more over fewer images, fewer over more, by a power of their ratio
1,000,000 images    3 passes    more images teach more than more passes
"""

from __future__ import annotations

import math

PASSES, PASSES_IMAGES, PASSES_POWER = 30, 2400, 0.31
"""Passes over so many images; more over fewer images, by a power of the ratio."""

MOST_PASSES = 40
"""Further passes over a small set cost time and gain nothing, unless it has fewer than `FEWEST_STEPS`."""

FEWEST_STEPS = 100
"""Of a training, however few images there are."""

MANY = 1500
"""Images from which the wide fast-cnn is worth three times the time of the narrow one."""

WIDE_SECONDS, WIDE_PASSES = 2e-6, 3
"""Of a pixel in the wide one on two cores; passes below which the narrow one learns more."""

SOON, SOON_PASSES = 60, 20
"""Seconds after which fewer than `MANY` images are trained on two cores, unless these are fewer passes."""

MOST_SEEN = 2_000_000
"""Images that a training sees at most, over all epochs, if that is more than `FEWEST_EPOCHS`."""

FEWEST_EPOCHS = 3

PRETRAINED_PASSES = {"cpu": 5, "cuda": 15}
"""Passes at most: pretrained weights learn new classes in a few."""


def wide_seconds(images: int, pixels: int) -> float:
    """Seconds of a pass over images of so many pixels in the wide fast-cnn."""
    return images * pixels * WIDE_SECONDS


def epochs_for(images: int, pixels: int, batch: int, device: str, *, has_weights: bool) -> int:
    """The number of epochs that suits a set."""
    usual: float = PASSES * (PASSES_IMAGES / images) ** PASSES_POWER
    passes = min(usual, MOST_PASSES)
    if has_weights:
        passes = min(passes / 2, PRETRAINED_PASSES[device])
    elif device == "cpu" and images < MANY:
        narrow = wide_seconds(images, pixels) / 3
        passes = min(passes, max(SOON_PASSES, SOON / narrow))
    fewest = FEWEST_STEPS / -(-images // batch)
    return max(FEWEST_EPOCHS, math.ceil(min(max(passes, fewest), MOST_SEEN / images)))
