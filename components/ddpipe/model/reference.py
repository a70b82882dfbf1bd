"""What answers and images of the training were like: what later ones are compared with.

It also holds the model's answer to a test pattern, by which a server proves that it computes the same; a
pattern, as an image of the dataset may be nobody else's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from ddpipe.model.tasks import BoolArray, FloatArray
from ddpipe.model.typed import typed

FILE = "reference.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A summary of answers and images.

    Attributes:
        images: How many there were.
        shares: Of each class, the fraction of images in whose answer it is.
        brightness: Of each channel, the mean of the images' means, from 0 to 255.
        spread: Of each channel, the standard deviation of the images' means.
        pattern: Probabilities of the classes for `pattern_of` the model's shape; empty in older packages.
    """

    images: int
    shares: tuple[float, ...]
    brightness: tuple[float, ...]
    spread: tuple[float, ...]
    pattern: tuple[float, ...] = ()

    @classmethod
    def of(cls, decisions: BoolArray, means: FloatArray, pattern: Sequence[float] = ()) -> Self:
        """From answers and images.

        Args:
            decisions: Shape (images, classes): which classes are in the answer.
            means: Shape (images, channels): of each channel of each image, from 0 to 255; at least one.
            pattern: Probabilities for the test pattern.
        """
        return cls(
            images=len(decisions),
            shares=tuple(decisions.mean(axis=0).tolist()),
            brightness=tuple(means.mean(axis=0).tolist()),
            spread=tuple(means.std(axis=0).tolist()),
            pattern=tuple(pattern),
        )

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`; raises ValueError for what no export wrote."""
        found = typed(cls, values)
        if found.images < 1 or not all(map(np.isfinite, found.numbers)):
            raise ValueError("it describes no images")
        return found

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of them."""
        return (*self.shares, *self.brightness, *self.spread, *self.pattern)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def pattern_of(shape: tuple[int, int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A test pattern that every program can make: value i, counted row by row, is 37 i modulo 251.

    Args:
        shape: Height, width and channels.

    Returns:
        uint8, shape (1, height, width, channels).
    """
    return (np.arange(math.prod(shape)) * 37 % 251).astype(np.uint8).reshape(1, *shape)


def means_of(batches: Iterable[np.ndarray[Any, np.dtype[np.uint8]]]) -> FloatArray:
    """Mean of each channel of each image.

    Args:
        batches: Pixels, shape (images, H, W, C).

    Returns:
        Shape (images, channels), from 0 to 255.
    """
    return np.concatenate([pixels.mean(axis=(1, 2), dtype=np.float64) for pixels in batches])
