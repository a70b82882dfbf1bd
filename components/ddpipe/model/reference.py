"""What answers and images were like when a model was evaluated: what later ones are compared with."""

from __future__ import annotations

from collections.abc import Iterable
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
    """

    images: int
    shares: tuple[float, ...]
    brightness: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, decisions: BoolArray, means: FloatArray) -> Self:
        """From answers and images.

        Args:
            decisions: Shape (images, classes): which classes are in the answer.
            means: Shape (images, channels): of each channel of each image, from 0 to 255; at least one.
        """
        return cls(
            images=len(decisions),
            shares=tuple(decisions.mean(axis=0).tolist()),
            brightness=tuple(means.mean(axis=0).tolist()),
            spread=tuple(means.std(axis=0).tolist()),
        )

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`; raises ValueError for what no export wrote."""
        found = typed(cls, values)
        if found.images < 1 or not all(map(np.isfinite, (*found.shares, *found.brightness, *found.spread))):
            raise ValueError("it describes no images")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def means_of(batches: Iterable[np.ndarray[Any, np.dtype[np.uint8]]]) -> FloatArray:
    """Mean of each channel of each image.

    Args:
        batches: Pixels, shape (images, H, W, C).

    Returns:
        Shape (images, channels), from 0 to 255.
    """
    return np.concatenate([pixels.mean(axis=(1, 2), dtype=np.float64) for pixels in batches])
