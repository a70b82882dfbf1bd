"""From an image file to the pixels that a model takes: what preparing and reading did to the training images.

Both use the same functions of `ddpipe.sources.images`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.manifest import Shape
from ddpipe.data.shards import cropped, reduced_image
from ddpipe.model.preprocessing import Preprocessing
from ddpipe.sources.base import ReadOptions
from ddpipe.sources.images import as_jpeg, contain, decode, look, shrink

MOST_LOST = 0.5  # of an image's area: cropping more is unusual


class Preprocessor:
    """Turns image files into the input of one model; safe to use from several threads."""

    def __init__(self, shape: Shape, how: Preprocessing) -> None:
        self.shape, self.how = shape, how
        self._reading = ReadOptions(how.window, how.first_frame)

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """An image file as the model takes it, of `shape`; raises `Unreadable`."""
        if not self.how.reduced_from:
            return self._stored(data, self.shape)
        height, width = self.how.reduced_from
        return reduced_image(self._stored(data, (height, width, self.shape[2])), self.shape)

    def _stored(self, data: bytes, shape: Shape) -> NDArray[np.uint8]:
        """An image file as a dataset version of this shape has it."""
        how = self.how
        if how.scale == "cover":
            image = decode(data, shape, how.depth, self._reading)
        elif how.scale == "contain":
            image = contain(data, shape[:2], how.depth, self._reading)
        else:
            image = shrink(data, how.side, how.depth, self._reading)
        if how.jpeg_quality:
            return cropped(as_jpeg(image, how.jpeg_quality), shape)
        return np.asarray(image.convert("L" if shape[2] == 1 else "RGB"), np.uint8).reshape(shape)

    def unusual(self, data: bytes) -> Iterator[str]:
        """What about an image differs from what a model of this input expects; raises `Unreadable`."""
        found = look(data)
        if found.shape[2] > self.shape[2]:
            yield "in color, but the model sees gray"
        if found.shape[2] < self.shape[2]:
            yield "gray, but the model sees color"
        if found.depth and not self.how.depth:
            yield "of 16 bits per value, but the training images had 8"
        height, width = found.shape[:2]
        if min(height / self.shape[0], width / self.shape[1]) < 1:
            yield f"smaller than the model's {self.shape[1]} x {self.shape[0]} pixels, so enlarged"
        narrow, wide = sorted((width / height, self.shape[1] / self.shape[0]))
        if 1 - narrow / wide > MOST_LOST:
            lost = "of the input is empty" if self.how.scale == "contain" else "of the area is cropped"
            yield f"of unusual proportions: over half {lost}"
