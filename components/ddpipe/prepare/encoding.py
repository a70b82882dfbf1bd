"""How images are stored: as raw pixels of one size, or as JPEGs with one length of the shorter side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ddpipe.data.manifest import Shape, ShardRef
from ddpipe.data.shards import JpegShard, encode_jpegs, encode_pixels, open_shard
from ddpipe.prepare.duplicates import DETAIL, perceptual_hash
from ddpipe.sources.base import DEFAULT, ReadOptions
from ddpipe.sources.images import FILTER, as_jpeg, bare, contain, decode, shrink

SMALL = 96  # images with a shorter side of at most so many pixels are stored as pixels, larger ones as JPEGs
PHOTOGRAPH = 256  # the shorter side of larger images, unless the user says otherwise or they are smaller
QUALITY = 90  # of JPEGs: the loss is below that of scaling, and a file half as large as at 95
CONTAIN = "contain"  # the fit of images that are not cropped
LITTLE = 0.1  # share of an image's area that may be cropped without a loss that matters
MANY = 0.05  # share of the images; if so many would lose more than a little, all stay whole
LONGEST = 4  # proportions of whole images, at most: longer ones have white above and below

AT_ONCE = 2**18  # values whose moments are summed at once: they fit into a processor's cache

POWERS = np.stack([np.arange(256), np.arange(256) ** 2], axis=1)

Moments = tuple[int, ...]  # number of pixels; for each channel the sum of values and of their squares


class Encoded(NamedTuple):
    """An encoded image, and what the entry of its shard records about it."""

    data: bytes
    moments: Moments  # of raw pixels none: `pixel_moments` sums those of many images at once
    phash: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw pixels: nothing to decode in training."""

    shape: Shape
    depth: int = 0  # bits that values of 16-bit images use; 0: there are no such images
    reading: ReadOptions = DEFAULT
    whole: bool = False  # not cropped: what is left of the shape is white

    @property
    def facts(self) -> Mapping[str, object]:
        """Everything that affects the result."""
        fit = {"fit": CONTAIN} if self.whole else {}
        return {"kind": "raw", "shape": list(self.shape), **fit, **_deep(self.depth), **self.reading.facts}

    def read_shape(self, channels: int) -> Shape:  # noqa: ARG002 - the same for any number
        """What readers return, if the image with most channels has so many."""
        return self.shape

    def encode(self, data: bytes) -> Encoded:
        """Scaled to the shape; raw pixels that have it already are copied."""
        found = bare(data)
        if found and found[0] == self.shape and min(self.shape[:2]) < DETAIL:
            pixels, phash = found[1], ""
        else:
            if self.whole:
                image = contain(data, self.shape[:2], self.depth, self.reading)
                image = image.convert("L" if self.shape[2] == 1 else "RGB")
            else:
                image = decode(data, self.shape, self.depth, self.reading)
            pixels, phash = image.tobytes(), perceptual_hash(image)
        return Encoded(pixels, (), phash)

    def pack(self, parts: Sequence[bytes]) -> tuple[ShardRef, bytes]:
        """A .npy."""
        return encode_pixels(parts, self.shape)

    def unpack(self, path: Path, shard: ShardRef) -> Callable[[int], bytes]:
        """The pixels of an image."""
        images = open_shard(path, shard, self.shape)
        return lambda index: b"".join(image.tobytes() for image in images.each(np.array([index])))


@dataclass(frozen=True, slots=True)
class Jpeg:
    """JPEGs, scaled once, so that training decodes no more pixels than it needs."""

    size: tuple[int, int]  # height and width of what readers get; a square's side, if an image is longer
    depth: int = 0
    reading: ReadOptions = DEFAULT
    whole: bool = False  # not cropped: what is left of the size is white

    @property
    def facts(self) -> Mapping[str, object]:
        """Everything that affects the result."""
        size = {"size": [*self.size], "fit": CONTAIN} if self.whole else {"side": self.size[0]}
        facts = {"kind": "jpeg", **size, "quality": QUALITY, "filter": FILTER.name.lower()}
        return {**facts, **_deep(self.depth), **self.reading.facts}

    def read_shape(self, channels: int) -> Shape:
        """What readers return, cut from the middle."""
        return *self.size, channels

    def encode(self, data: bytes) -> Encoded:
        """Scaled to the shorter side, or to fit; gray stays gray."""
        if self.whole:
            image = contain(data, self.size, self.depth, self.reading)
        else:
            image = shrink(data, self.size[0], self.depth, self.reading)
        return Encoded(as_jpeg(image, QUALITY), moments(image), perceptual_hash(image))

    def pack(self, parts: Sequence[bytes]) -> tuple[ShardRef, bytes]:
        """A .tar."""
        return encode_jpegs(parts)

    def unpack(self, path: Path, shard: ShardRef) -> Callable[[int], bytes]:
        """The JPEG file of an image."""
        return JpegShard(path, shard, (*self.size, 3)).file


Encoding = Raw | Jpeg  # converts image files to what a shard holds; equal `facts` give equal shards


def encoding_of(facts: Mapping[str, Any], reading: ReadOptions) -> Encoding:
    """The encoding that has these facts."""
    depth, whole = int(facts.get("depth", 0)), "fit" in facts
    if facts["kind"] == "raw":
        height, width, channels = map(int, facts["shape"])
        return Raw((height, width, channels), depth, reading, whole)
    height, width = map(int, facts.get("size") or 2 * [facts["side"]])
    return Jpeg((height, width), depth, reading, whole)


def _deep(depth: int) -> dict[str, int]:
    return {"depth": depth} if depth else {}


def moments(image: Image.Image) -> Moments:
    """Moments as exact integers, so that they add up to the same statistics in any order on any machine."""
    sums = np.array(image.histogram(), np.int64).reshape(-1, 256) @ POWERS
    return (image.width * image.height, *sums.ravel().tolist())


def pixel_moments(images: Sequence[bytes], shape: Shape) -> NDArray[np.uint64]:
    """The moments of images of raw pixels, all at once; shape (images, 1 + 2 * channels)."""
    height, width, channels = shape
    step, rows = max(1, AT_ONCE // math.prod(shape)), []
    for start in range(0, len(images), step):
        pixels = np.frombuffer(b"".join(images[start : start + step]), np.uint8)
        values = pixels.reshape(-1, height * width, channels).transpose(0, 2, 1).astype(np.uint16, order="C")
        sums = values.sum(axis=2, dtype=np.uint64)
        values *= values  # at most 255 ** 2, which 16 bits hold
        rows.append(np.stack([sums, values.sum(axis=2, dtype=np.uint64)], axis=2).reshape(len(sums), -1))
    return np.insert(np.concatenate(rows), 0, height * width, axis=1)


def chosen(shapes: ArrayLike, kind: str, size: int, reading: ReadOptions = DEFAULT) -> Encoding:
    """Choose the encoding for images of these shapes, (n, 3): cropped where little is lost, else whole."""
    found = np.asarray(shapes, np.int64).reshape(-1, 3)
    if not len(found):
        side = size or PHOTOGRAPH
        return Jpeg((side, side), reading=reading)
    height, width = (size, size) if size else _usual(found)
    is_raw = kind == "raw" or (kind == "auto" and min(height, width) <= SMALL)
    if not is_raw:
        height = width = size or min(PHOTOGRAPH, height, width)
    if whole := bool((_lost(found[:, :2], (height, width)) > LITTLE).mean() > MANY):
        # As many pixels, in the proportions that the images have on average.
        logs = 0 if size else np.log(found[:, 1] / found[:, 0]).mean()
        share = math.exp(np.clip(logs, -math.log(LONGEST), math.log(LONGEST)))
        area, height = height * width, max(1, round(math.sqrt(height * width / share)))
        width = max(1, round(area / height))
    if is_raw:
        return Raw((height, width, int(found[:, 2].max())), reading=reading, whole=whole)
    return Jpeg((height, width), reading=reading, whole=whole)


def _usual(shapes: NDArray[np.int64]) -> tuple[int, int]:
    """The height and width that most of the images have; else those in the middle."""
    sizes, first, counts = np.unique(shapes[:, 0] << 32 | shapes[:, 1], return_index=True, return_counts=True)
    commonest = np.lexsort((first, -counts))[0]
    if counts[commonest] * 2 >= len(shapes):
        height, width = divmod(int(sizes[commonest]), 2**32)
        return height, width
    height, width = np.sort(shapes[:, :2], axis=0)[len(shapes) // 2].tolist()
    return height, width


Sizes = Mapping[tuple[int, int], int]  # number of images of each height and width


def what_is_there(images: int, classes: int, sizes: Sizes, *, channels: int, exclusive: bool) -> str:
    """What a source holds, in a line: "120 images, 2 classes, 160 × 200, RGB"."""  # noqa: RUF002
    kinds = "classes" if exclusive else "labels"
    (commonest, count), others = max(sizes.items(), key=lambda item: item[1]), len(sizes) - 1
    if others and count * 2 < images:
        least, most = (found(sizes, key=lambda size: size[0] * size[1]) for found in (min, max))
        shown = f"{len(sizes):,} sizes from {shown_size(least)} to {shown_size(most)}"
    else:
        shown = shown_size(commonest) + (f" and {others:,} other size{'s' * (others > 1)}" if others else "")
    return f"{images:,} images, {classes:,} {kinds}, {shown}, {'RGB' if channels > 1 else 'gray'}"


def shown_size(size: Sequence[int]) -> str:
    """Height and width as they are printed everywhere: the width first."""
    return f"{size[1]} × {size[0]}"  # noqa: RUF001


def target_of(encoding: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of what readers get."""
    height, width = encoding.get("shape", encoding.get("size", 2 * [encoding.get("side")]))[:2]
    return height, width


def how_shaped(encoding: Mapping[str, Any], sizes: Sizes) -> str:
    """What happens to images of these sizes, in a few sentences."""
    target, whole = target_of(encoding), "fit" in encoding
    if encoding["kind"] == "raw" and set(sizes) <= {target}:
        return f"Images are kept as they are, {shown_size(target)} pixels."
    shown = f"{shown_size(target)} pixels"
    if whole:
        how = f"Images are kept whole, scaled to fit into {shown}"
    elif encoding["kind"] == "jpeg":
        how = (
            f"Images are scaled to a shorter side of {target[0]} pixels; readers get {shown} from the center"
        )
    else:
        how = f"Images are scaled to {shown}, keeping proportions; the longer side is cropped at both ends"
    found, counts = np.array([*sizes]), np.array([*sizes.values()])
    missing = _empty(found, target) if whole else _lost(found, target)
    is_missing = missing > 0
    details = []
    if count := int(counts[is_missing].sum()):
        mean = float(np.average(missing[is_missing], weights=counts[is_missing]))
        area = f"leave {mean:.0%} of it white" if whole else f"lose {mean:.0%} of their area"
        details.append(f"{count:,} of {counts.sum():,} images {area} on average")
    is_small = (found < target).all(axis=1) if whole else (found < target).any(axis=1)
    if count := int(counts[is_small].sum()):
        details.append(f"{count:,} are enlarged")
    seen = f" ({', '.join(details)})" if details else ""
    return f"{how}{seen}. Proportions never change."


def _lost(sizes: NDArray[np.int64], target: tuple[int, int]) -> NDArray[np.float64]:
    """The share of the area of images that is cropped; less than a pixel is none. `sizes`: (n, 2)."""
    kept = np.minimum(sizes, np.array(target) / np.max(target / sizes, axis=1, keepdims=True))
    return np.where((sizes - kept < 1).all(axis=1), 0.0, 1 - kept.prod(axis=1) / sizes.prod(axis=1))


def _empty(sizes: NDArray[np.int64], target: tuple[int, int]) -> NDArray[np.float64]:
    """The share of the target that whole images do not fill; less than a pixel is none. `sizes`: (n, 2)."""
    filled = sizes * np.min(target / sizes, axis=1, keepdims=True)
    return np.where((target - filled < 1).all(axis=1), 0.0, 1 - filled.prod(axis=1) / math.prod(target))
