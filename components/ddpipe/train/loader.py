"""Batches on the device: this rank's shares of an epoch, in the order of `order`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.train.order import Indices, dealt, global_batch, permutation, steps_per_epoch

EVALUATION_BATCH = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples on the device.

    Attributes:
        images: uint8, shape (n, H, W, C).
        labels: int64, shape (n,).
        size: Of the global batch that this is a share of.
    """

    images: Tensor
    labels: Tensor
    size: int


def epoch_batches(
    reader: SplitReader, world: World, *, seed: int, epoch: int, batch_size: int, first: int = 0
) -> Iterator[Batch]:
    """This rank's shares of an epoch's batches, from the first-th on."""
    order = permutation(seed, epoch, len(reader))
    for number in range(first, steps_per_epoch(len(reader), batch_size)):
        batch = global_batch(order, number, batch_size)
        yield load(reader, dealt(batch, world.rank, world.size), len(batch), world.device)


def every_sample(reader: SplitReader, world: World) -> Iterator[Batch]:
    """This rank's share of a whole split, each sample once."""
    share = world.share(len(reader))
    for start in range(0, len(share), EVALUATION_BATCH):
        chosen = share[start : start + EVALUATION_BATCH]
        yield load(reader, chosen, len(chosen), world.device)


def load(reader: SplitReader, indices: Indices, size: int, device: torch.device) -> Batch:
    """The samples with these indices, on `device`; the copy to a GPU does not wait for its work."""
    images, labels = (
        torch.from_numpy(reader.images(indices)),
        torch.from_numpy(reader.labels[np.asarray(indices)]),
    )
    if device.type == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()
    return Batch(images.to(device, non_blocking=True), labels.to(device, non_blocking=True), size)
