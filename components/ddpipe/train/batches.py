"""The images of a step: which they are on which rank, how they are changed, how they get to the device.

An epoch of n samples has ceil(n / B) steps, B the size of the global batch, and step k of s has
`perm(seed, epoch)[k * n // s : (k + 1) * n // s]`: the same samples for any number of ranks, and every sample
exactly once in every epoch. So sizes differ by one at most. If the last step had what full ones leave, one
image could weigh as much as a whole batch, and its batch statistics would ruin a network. A rank's share may
be empty.

Augmentation changes a sample in the same way in an epoch at any number of ranks: every number drawn is a hash
of (seed, epoch, sample), so there is no generator whose state would have to be saved. A whole batch is
changed at once, as uint8, before it goes to the device; what photographs need beyond comes from torchvision.

Progressive resizing shows smaller images to early steps, which cost less: Howard, "Training ImageNet in 3
hours for USD 25", fast.ai, 2018.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import resize

from ddpipe.data.reader import SplitReader, prefetched
from ddpipe.data.shards import Images
from ddpipe.distributed import World
from ddpipe.train.constants import FULL_RESOLUTION_FROM, SIDE_MULTIPLE
from ddpipe.train.recipe import AUGMENTATIONS, Augmentation, Recipe

Indices = NDArray[np.int64]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Batches that hold every sample once."""
    return -(-samples // batch_size)


def batch_sizes(samples: int, batch_size: int) -> Indices:
    """Samples in each batch of an epoch."""
    steps = steps_per_epoch(samples, batch_size)
    return np.diff(np.arange(steps + 1) * samples // steps)


def images_seen(step: int, samples: int, batch_size: int) -> int:
    """Images in the first `step` batches of a training."""
    return step * samples // steps_per_epoch(samples, batch_size)


def permutation(seed: int, epoch: int, samples: int) -> Indices:
    """All indices below `samples` in the order of this epoch: int64, shape (samples,)."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def global_batch(order: Indices, batch: int, batch_size: int) -> Indices:
    """The samples of one batch of an epoch, over all ranks: int64, shape (batch_size,) or less."""
    steps = steps_per_epoch(len(order), batch_size)
    return order[batch * len(order) // steps : (batch + 1) * len(order) // steps]


def share_of(batch: Indices, rank: int, ranks: int) -> Indices:
    """A rank's share of a global batch: every `ranks`-th sample, so shares differ by one sample at most."""
    return batch[rank::ranks]


def seed_of_step(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's random numbers in one step, such as those of dropout: below 2**64."""
    key = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8)
    return int.from_bytes(key.digest())


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples on the device."""

    images: Tensor  # uint8, shape (n, H, W, C)
    labels: Tensor  # CrossEntropy: int64, shape (n,). BinaryCrossEntropy: float32, shape (n, classes).
    size: int  # of the global batch that this is a share of


def epoch_batches(
    reader: SplitReader,
    world: World,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    first: int = 0,
    augmentation: Augmentation = AUGMENTATIONS["none"],
) -> Iterator[Batch]:
    """This rank's shares of an epoch's batches, each read during the steps before."""
    order = permutation(seed, epoch, len(reader))

    def share(number: int) -> Copy:
        batch = global_batch(order, number, batch_size)
        chosen = share_of(batch, world.rank, world.size)
        images = augmented(reader.images(chosen), augmentation, seed, epoch, chosen)
        return copies.begun(images, reader.labels[chosen], len(batch))

    copies = _Copies(world.device)
    numbers = range(first, steps_per_epoch(len(reader), batch_size))
    return map(copies.finished, prefetched(share, numbers, threads=1))


Copy = tuple[Batch, torch.Event | None]  # on its way, and the event of its arrival; None: it is there


class _Copies:
    """Copies of batches to the device, on a stream of its own: they overlap with the step before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begun(self, pixels: NDArray[np.uint8], targets: NDArray[np.int64], size: int) -> Copy:
        """A batch whose copy has begun, and the event of its end; called in the thread that reads."""
        images, labels = torch.from_numpy(pixels), torch.from_numpy(targets)
        if labels.ndim > 1:
            labels = labels.float()
        if not self._stream:
            return Batch(images, labels, size), None
        # The block selects the device, too: a new thread would pin memory through GPU 0.
        with torch.cuda.stream(self._stream):
            images, labels = images.pin_memory(), labels.pin_memory()
            batch = Batch(
                images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True), size
            )
            return batch, self._stream.record_event()

    def finished(self, copy: Copy) -> Batch:
        """The batch, for the stream that computes; called in the thread that trains."""
        batch, event = copy
        if event:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(event)
            for one in (batch.images, batch.labels):
                one.record_stream(computing)  # so that its memory is not reused before the step is done
        return batch


GRAY = 128

WIDEST = 4 / 3  # width to height, or height to width, of what is seen after a zoom


def augmented(images: Images, how: Augmentation, seed: int, epoch: int, samples: Indices) -> Images:
    """The images, changed at random."""
    if how == Augmentation():
        return images
    height, width = images.shape[1:3]
    down, right, mirror, hole_top, hole_left, area, ratio, *light = draws(seed, epoch, samples, 9)
    if how.shift:
        images = _shifted(images, round(height * how.shift), round(width * how.shift), down, right)
    if how.zoom < 1:
        images = _zoomed(images, how.zoom + (1 - how.zoom) * area, WIDEST ** (2 * ratio - 1), down, right)
    if how.light:
        images = _lit(images, *(1 + how.light * (2 * draw - 1) for draw in light))
    if how.flip != "none":
        chosen = _mirrored(how.flip, mirror, seed, epoch, samples)
        images[chosen] = images[chosen, :, ::-1]
    if how.cutout:
        side = round(min(height, width) * how.cutout)
        tops, lefts = _places(hole_top, height - side), _places(hole_left, width - side)
        for image, top, left in zip(images, tops, lefts, strict=True):
            image[top : top + side, left : left + side] = GRAY
    return images


def _mirrored(
    flip: str, draw: NDArray[np.float64], seed: int, epoch: int, samples: Indices
) -> NDArray[np.bool_]:
    """Which images are mirrored."""
    if flip == "alternating":
        (draw,) = draws(seed, 0, samples, 1)
    every_second: NDArray[np.bool_] = draw < 0.5  # noqa: PLR2004
    return ~every_second if flip == "alternating" and epoch % 2 else every_second


def draws(seed: int, epoch: int, samples: Indices, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), shape (count, samples): SplitMix64 of (seed, epoch, sample), in any batch."""
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
    # Mirrored, not black: an edge that no photograph has would be the easiest thing to learn.
    padded = np.pad(images, ((0, 0), (rows, rows), (columns, columns), (0, 0)), mode="reflect")
    shifted = np.empty_like(images)
    tops, lefts = _places(down, 2 * rows), _places(right, 2 * columns)
    for image, source, top, left in zip(shifted, padded, tops, lefts, strict=True):
        image[...] = source[top : top + height, left : left + width]
    return shifted


def _zoomed(
    images: Images,
    areas: NDArray[np.float64],
    ratios: NDArray[np.float64],
    down: NDArray[np.float64],
    right: NDArray[np.float64],
) -> Images:
    """Rectangles of the images, of these parts of their areas and these ratios, in their old shape."""
    height, width = images.shape[1:3]
    zoomed = np.empty_like(images)
    heights = np.clip(np.rint(height * np.sqrt(areas / ratios)), 1, height).astype(int)
    widths = np.clip(np.rint(width * np.sqrt(areas * ratios)), 1, width).astype(int)
    tops, lefts = (down * (height - heights + 1)).astype(int), (right * (width - widths + 1)).astype(int)
    for number, box in enumerate(zip(tops, lefts, heights, widths, strict=True)):
        pixels = torch.from_numpy(images[number]).permute(2, 0, 1)
        seen = functional.resized_crop(pixels, *map(int, box), size=[height, width])
        zoomed[number] = seen.permute(1, 2, 0).numpy()
    return zoomed


def _lit(images: Images, brightness: NDArray[np.float64], contrast: NDArray[np.float64]) -> Images:
    """The images, each brighter or darker, with more or less contrast, by these factors."""
    for image, factor, strength in zip(images, brightness, contrast, strict=True):
        pixels = functional.adjust_brightness(torch.from_numpy(image).permute(2, 0, 1), float(factor))
        image[...] = functional.adjust_contrast(pixels, float(strength)).permute(1, 2, 0).numpy()
    return images


def _places(draw: NDArray[np.float64], largest: int) -> list[int]:
    """Whole numbers from 0 to `largest`, all with the same chance."""
    places: list[int] = (draw * (largest + 1)).astype(np.int64).tolist()
    return places


def resolution(recipe: Recipe, step: int, steps: int) -> float:
    """The share of the images' sides that the network sees in a step."""
    return recipe.initial_resolution if step < FULL_RESOLUTION_FROM * steps else 1.0


def resized(images: Tensor, share: float) -> Tensor:
    """Images, shape (n, H, W, C), with this share of their sides."""
    if share == 1:
        return images
    sides = [
        max(SIDE_MULTIPLE, round(side * share / SIDE_MULTIPLE) * SIDE_MULTIPLE) for side in images.shape[1:3]
    ]
    smaller: Tensor = resize(images.permute(0, 3, 1, 2), sides, antialias=True)
    return smaller.permute(0, 2, 3, 1)
