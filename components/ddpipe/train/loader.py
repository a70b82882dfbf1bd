"""Batches on the device: this rank's shares of an epoch, in the order of `order`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddpipe.data.prefetch import prefetched
from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.train.augment import augmented
from ddpipe.train.augmentation import AUGMENTATIONS, Augmentation
from ddpipe.train.order import dealt, global_batch, permutation, steps_per_epoch

EVALUATION_BATCH = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples on the device.

    Attributes:
        images: uint8, shape (n, H, W, C).
        labels: CrossEntropy: int64, shape (n,). BinaryCrossEntropy: float32, shape (n, classes).
        size: Of the global batch that this is a share of.
    """

    images: Tensor
    labels: Tensor
    size: int


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
    """This rank's shares of an epoch's batches, from the first-th on, each read during the steps before."""
    order = permutation(seed, epoch, len(reader))

    def share(number: int) -> Batch:
        batch = global_batch(order, number, batch_size)
        chosen = dealt(batch, world.rank, world.size)
        images = augmented(reader.images(chosen), augmentation, seed, epoch, chosen)
        return _moved(images, reader.labels[chosen], len(batch), world.device)

    return prefetched(share, range(first, steps_per_epoch(len(reader), batch_size)), threads=1)


def every_sample(reader: SplitReader, world: World) -> Iterator[Batch]:
    """This rank's share of a whole split, each sample once, each batch read while others are computed.

    All ranks get the same number of batches, as those of a sharded model have to; the last may be empty.
    """
    mine, largest_share = world.share(len(reader)), -(-len(reader) // world.size)

    def share(start: int) -> Batch:
        chosen = np.asarray(mine[start : start + EVALUATION_BATCH])
        return _moved(reader.images(chosen), reader.labels[chosen], len(chosen), world.device)

    return prefetched(share, range(0, largest_share, EVALUATION_BATCH), threads=1)


def _moved(pixels: NDArray[np.uint8], targets: NDArray[np.int64], size: int, device: torch.device) -> Batch:
    """Samples on `device`; the copy to a GPU does not wait for its work."""
    images, labels = torch.from_numpy(pixels), torch.from_numpy(targets)
    if labels.ndim > 1:
        labels = labels.float()
    if device.type == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()
    return Batch(images.to(device, non_blocking=True), labels.to(device, non_blocking=True), size)
