"""Small random changes to training images: the same for a sample in an epoch, whatever the ranks or restarts.

Every number drawn is a hash of (seed, epoch, sample), so there is no generator whose state would have to be
saved. A whole batch is changed at once, as uint8, before it goes to the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpipe.train.order import Indices

Images = NDArray[np.uint8]
"""Shape (samples, height, width, channels)."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What happens to an image.

    Attributes:
        shift: It moves by up to this part of its sides; what is missing is its mirror image.
        flip: Every second one is mirrored from left to right.
        cutout: A square of this part of its sides becomes grey.
    """

    shift: float = 0.0
    flip: bool = False
    cutout: float = 0.0


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": Augmentation(),
    "shift": Augmentation(shift=1 / 8),
    "shift-flip": Augmentation(shift=1 / 8, flip=True),
    "shift-flip-cutout": Augmentation(shift=1 / 8, flip=True, cutout=1 / 4),
}
"""By the names of the recipe."""

GREY = 128


def augmented(images: Images, how: Augmentation, seed: int, epoch: int, samples: Indices) -> Images:
    """The images, changed at random.

    Args:
        images: Of one batch.
        how: What is done.
        seed: Of the training.
        epoch: From 0.
        samples: Index of each image in its split.
    """
    if how == Augmentation():
        return images
    height, width = images.shape[1:3]
    down, right, mirror, hole_top, hole_left = draws(seed, epoch, samples, 5)
    if how.shift:
        images = _shifted(images, round(height * how.shift), round(width * how.shift), down, right)
    if how.flip:
        chosen = mirror < 0.5  # noqa: PLR2004 - every second one
        images[chosen] = images[chosen, :, ::-1]
    if how.cutout:
        side = round(min(height, width) * how.cutout)
        tops, lefts = _places(hole_top, height - side), _places(hole_left, width - side)
        for image, top, left in zip(images, tops, lefts, strict=True):
            image[top : top + side, left : left + side] = GREY
    return images


def draws(seed: int, epoch: int, samples: Indices, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1): `count` for each sample, shape (count, samples); a hash, so each stands for itself.

    Source: the finalizer of SplitMix64, Steele et al., OOPSLA 2014.
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    numbers = samples.astype(np.uint64) * np.uint64(count) + np.arange(count, dtype=np.uint64)[:, None]
    state = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(11)) / 2**53


def _shifted(
    images: Images, rows: int, columns: int, down: NDArray[np.float64], right: NDArray[np.float64]
) -> Images:
    """Cut from the images, with a mirrored margin around them."""
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (rows, rows), (columns, columns), (0, 0)), mode="reflect")
    shifted = np.empty_like(images)
    tops, lefts = _places(down, 2 * rows), _places(right, 2 * columns)
    for image, source, top, left in zip(shifted, padded, tops, lefts, strict=True):
        image[...] = source[top : top + height, left : left + width]
    return shifted


def _places(draw: NDArray[np.float64], largest: int) -> list[int]:
    """Whole numbers from 0 to `largest`, all with the same chance."""
    places: list[int] = (draw * (largest + 1)).astype(np.int64).tolist()
    return places
