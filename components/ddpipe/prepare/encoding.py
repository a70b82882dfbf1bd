"""How images are stored: as raw pixels of one size, or as JPEGs with one length of the shorter side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from ddpipe.data.manifest import Shape, ShardRef
from ddpipe.data.shards import JpegShard, encode_jpegs, encode_pixels, open_shard
from ddpipe.prepare.duplicates import DETAIL, perceptual_hash
from ddpipe.sources.base import DEFAULT, ReadOptions
from ddpipe.sources.images import FILTER, as_jpeg, bare, decode

SMALL = 96
"""Images with a shorter side of at most so many pixels are stored as pixels, larger ones as JPEGs."""

PHOTOGRAPH = 256
"""The shorter side of larger images, unless the user says otherwise or they are smaller."""

QUALITY = 90
"""Of JPEGs: the loss is below that of scaling, and a file half as large as at 95."""

POWERS = np.stack([np.arange(256), np.arange(256) ** 2], axis=1)

Moments = tuple[int, ...]
"""Of an image: number of pixels, and for each channel the sum of their values and of their squares."""


class Encoded(NamedTuple):
    """An encoded image, and what the entry of its shard records about it."""

    data: bytes
    moments: Moments
    phash: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw pixels: nothing to decode in training."""

    shape: Shape
    depth: int = 0  # bits that values of 16-bit images use; 0: there are no such images
    reading: ReadOptions = DEFAULT

    @property
    def facts(self) -> Mapping[str, object]:
        """Everything that affects the result."""
        return {"kind": "raw", "shape": list(self.shape), **_deep(self.depth), **self.reading.facts}

    def read_shape(self, channels: int) -> Shape:  # noqa: ARG002 - the same for any number
        """What readers return, if the image with most channels has so many."""
        return self.shape

    def encode(self, data: bytes) -> Encoded:
        """Scaled and cropped to the shape; raw pixels that have it already are copied."""
        found = bare(data)
        if found and found[0] == self.shape and min(self.shape[:2]) < DETAIL:
            pixels, phash = found[1], ""
        else:
            image = decode(data, self.shape, self.depth, self.reading)
            pixels, phash = image.tobytes(), perceptual_hash(image)
        return Encoded(pixels, pixel_moments(pixels, self.shape[2]), phash)

    def pack(self, parts: Sequence[bytes]) -> tuple[ShardRef, bytes]:
        """A .npy."""
        return encode_pixels(parts, self.shape)

    def unpack(self, path: Path, shard: ShardRef) -> Callable[[int], bytes]:
        """The pixels of an image."""
        images = open_shard(path, shard, self.shape)

        def part(index: int) -> bytes:
            (image,) = images.each(np.array([index]))
            return image.tobytes()

        return part


@dataclass(frozen=True, slots=True)
class Jpeg:
    """JPEGs, scaled once, so that training decodes no more pixels than it needs."""

    side: int  # the shorter one, in pixels
    depth: int = 0
    reading: ReadOptions = DEFAULT

    @property
    def facts(self) -> Mapping[str, object]:
        """Everything that affects the result."""
        facts = {"kind": "jpeg", "side": self.side, "quality": QUALITY, "filter": FILTER.name.lower()}
        return {**facts, **_deep(self.depth), **self.reading.facts}

    def read_shape(self, channels: int) -> Shape:
        """What readers return: a square, cut from the middle."""
        return self.side, self.side, channels

    def encode(self, data: bytes) -> Encoded:
        """Scaled to the shorter side; gray stays gray."""
        image, file = as_jpeg(data, self.side, QUALITY, self.depth, self.reading)
        return Encoded(file, moments(image), perceptual_hash(image))

    def pack(self, parts: Sequence[bytes]) -> tuple[ShardRef, bytes]:
        """A .tar."""
        return encode_jpegs(parts)

    def unpack(self, path: Path, shard: ShardRef) -> Callable[[int], bytes]:
        """The JPEG file of an image."""
        return JpegShard(path, shard, (self.side, self.side, 3)).file


Encoding = Raw | Jpeg
"""Converts image files to what a shard holds; equal `facts` give equal shards."""


def encoding_of(facts: Mapping[str, Any], reading: ReadOptions) -> Encoding:
    """The encoding that has these facts."""
    depth = int(facts.get("depth", 0))
    if facts["kind"] == "raw":
        height, width, channels = map(int, facts["shape"])
        return Raw((height, width, channels), depth, reading)
    return Jpeg(int(facts["side"]), depth, reading)


def _deep(depth: int) -> dict[str, int]:
    return {"depth": depth} if depth else {}


def moments(image: Image.Image) -> Moments:
    """Moments as exact integers, so that they add up to the same statistics in any order on any machine."""
    sums = np.array(image.histogram()).reshape(-1, 256) @ POWERS
    return (image.width * image.height, *sums.ravel().tolist())


def pixel_moments(pixels: bytes, channels: int) -> Moments:
    """The moments of raw pixels; faster for small images."""
    values = np.frombuffer(pixels, np.uint8).reshape(-1, channels)
    sums = [np.bincount(values[:, channel], minlength=256) @ POWERS for channel in range(channels)]
    return (len(values), *np.concatenate(sums).tolist())


def chosen(shapes: ArrayLike, kind: str, size: int, reading: ReadOptions = DEFAULT) -> Encoding:
    """Choose the encoding for these images."""
    found = np.asarray(shapes, np.int64).reshape(-1, 3)
    if not len(found):
        return Jpeg(size or PHOTOGRAPH, reading=reading)
    sizes, first, counts = np.unique(found[:, 0] << 32 | found[:, 1], return_index=True, return_counts=True)
    commonest = sizes[np.lexsort((first, -counts))[0]]
    height, width = (size, size) if size else divmod(int(commonest), 2**32)
    if kind == "raw" or min(height, width) <= SMALL:
        return Raw((height, width, int(found[:, 2].max())), reading=reading)
    return Jpeg(size or min(PHOTOGRAPH, height, width), reading=reading)


Sizes = Mapping[tuple[int, int], int]
"""Number of images of each height and width."""


def what_is_there(images: int, classes: int, sizes: Sizes, *, channels: int, exclusive: bool) -> str:
    """What a source holds, in a line: "120 images, 2 classes, 160 × 200, RGB"."""  # noqa: RUF002
    kinds = "classes" if exclusive else "labels"
    (height, width), _ = max(sizes.items(), key=lambda item: item[1])
    others = f" and {len(sizes) - 1:,} other sizes" if len(sizes) > 1 else ""
    color = "RGB" if channels > 1 else "gray"
    return f"{images:,} images, {classes:,} {kinds}, {width} × {height}{others}, {color}"  # noqa: RUF001


def how_shaped(encoding: Mapping[str, Any], sizes: Sizes) -> str:
    """What happens to images of these sizes, in a few sentences."""
    is_whole = encoding["kind"] == "jpeg"
    height, width = (encoding["side"], encoding["side"]) if is_whole else encoding["shape"][:2]
    target = f"{width} × {height} pixels"  # noqa: RUF001
    if not is_whole and set(sizes) <= {(height, width)}:
        return f"Images are kept as they are, {target}."
    how = (
        f"Images are kept whole, scaled to a shorter side of {height} pixels; readers get {target} "
        "from the center"
        if is_whole
        else f"Images are scaled to {target}, keeping proportions; the longer side is cropped at both ends"
    )
    losses = {size: _lost(size, (height, width)) for size in sizes}
    cropped = sum(count for size, count in sizes.items() if losses[size] > 0)
    enlarged = sum(count for (high, wide), count in sizes.items() if high < height or wide < width)
    details = []
    if cropped:
        mean = sum(losses[size] * count for size, count in sizes.items()) / cropped
        details.append(
            f"{cropped:,} of {sum(sizes.values()):,} images lose {mean:.0%} of their area on average"
        )
    if enlarged:
        details.append(f"{enlarged:,} are enlarged")
    seen = f" ({', '.join(details)})" if details else ""
    return f"{how}{seen}. Proportions never change."


def _lost(size: tuple[int, int], target: tuple[int, int]) -> float:
    """The fraction of an image's area that is cropped; less than a pixel is none."""
    factor = max(target[0] / size[0], target[1] / size[1])
    kept = [min(length, wanted / factor) for length, wanted in zip(size, target, strict=True)]
    if all(length - part < 1 for length, part in zip(size, kept, strict=True)):
        return 0.0
    return 1 - kept[0] * kept[1] / (size[0] * size[1])
