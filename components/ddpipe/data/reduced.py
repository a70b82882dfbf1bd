"""Images at a working resolution: reduced when they are first read, then kept in memory while they fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddpipe.data.manifest import Shape
from ddpipe.data.shards import Images, Shard

KEPT = 256 * 2**20
"""Bytes of a split's reduced images that stay in memory: small sets are read hundreds of times."""


def working_shape(shape: Shape, resolution: int) -> Shape:
    """The shape in which a network sees images: the shorter side at most `resolution`; 0 changes nothing."""
    height, width, channels = shape
    share = resolution / min(height, width)
    return shape if not 0 < share < 1 else (round(height * share), round(width * share), channels)


def reduced(shards: Sequence[Shard], shape: Shape) -> list[Shard]:
    """The same images of a split, reduced to a shape of the same proportions.

    Args:
        shards: Of one split.
        shape: Height, width and channels.
    """
    keep = sum(map(len, shards)) * math.prod(shape) <= KEPT
    return [Reduced(shard, shape, keep=keep) for shard in shards]


class Reduced:
    """The reduced images of one shard; for one thread, if they are kept."""

    def __init__(self, shard: Shard, shape: Shape, *, keep: bool) -> None:
        self._shard, self._shape = shard, shape
        count = len(shard) if keep else 0
        self._kept = np.empty((count, *shape), np.uint8)
        self._is_kept = np.zeros(count, np.bool_)

    def __len__(self) -> int:
        return len(self._shard)

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """The images with these indices, one by one, each of shape (height, width, channels)."""
        if not len(self._kept):
            return (reduced_image(image, self._shape) for image in self._shard.each(indices))
        missing = np.unique(indices[~self._is_kept[indices]])
        for index, image in zip(missing.tolist(), self._shard.each(missing), strict=True):
            self._kept[index], self._is_kept[index] = reduced_image(image, self._shape), True
        return map(self._kept.__getitem__, indices.tolist())


def reduced_image(image: Images, shape: Shape) -> Images:
    """An image in a smaller shape, by the filter of prepare."""
    height, width, channels = shape
    picture = Image.fromarray(image[..., 0] if channels == 1 else np.ascontiguousarray(image))
    small = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(small, np.uint8).reshape(shape)
