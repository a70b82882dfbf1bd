"""Which sample goes to which rank at which step, by (seed, epoch, step); and how it gets there.

Batch k of an epoch is `perm(seed, epoch)[k * B : (k + 1) * B]`, B the size of the global batch: the same
samples in the same step for any number of ranks. The last batch of an epoch holds what is left, so that every
sample is seen exactly once in every epoch; a rank's share of it may be empty.
"""

from __future__ import annotations

import hashlib
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
from ddpipe.train.recipe import AUGMENTATIONS, Augmentation

Indices = NDArray[np.int64]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Batches that hold every sample once."""
    return -(-samples // batch_size)


def batch_sizes(samples: int, batch_size: int) -> Indices:
    """Samples in each batch of an epoch."""
    return np.diff(np.append(np.arange(0, samples, batch_size), samples))


def images_seen(step: int, samples: int, batch_size: int) -> int:
    """Images in the first `step` batches of a training."""
    epochs, batches = divmod(step, steps_per_epoch(samples, batch_size))
    return epochs * samples + min(batches * batch_size, samples)


def permutation(seed: int, epoch: int, samples: int) -> Indices:
    """All indices below `samples`, in the order of this epoch.

    Returns:
        int64, shape (samples,).
    """
    return np.random.default_rng([seed, epoch]).permutation(samples)


def global_batch(order: Indices, batch: int, batch_size: int) -> Indices:
    """The samples of one batch of an epoch, over all ranks.

    Returns:
        int64, shape (batch_size,); shorter for the last batch of an epoch.
    """
    return order[batch * batch_size : (batch + 1) * batch_size]


def share_of(batch: Indices, rank: int, ranks: int) -> Indices:
    """A rank's share of a global batch: every `ranks`-th sample, so shares differ by one sample at most."""
    return batch[rank::ranks]


def seed_of_step(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's random numbers in one step, such as those of dropout: below 2**64."""
    key = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8)
    return int.from_bytes(key.digest())


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


Copy = tuple[Batch, torch.Event | None]
"""A batch on its way to the device, and the event of its arrival; None if it is there."""


class _Copies:
    """Copies of batches to the device; those to a GPU overlap with the step before.

    They run on a stream of their own: on the stream that computes, a copy would wait for all work before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begun(self, pixels: NDArray[np.uint8], targets: NDArray[np.int64], size: int) -> Copy:
        """A batch whose copy has begun, and the event of its end; called in the thread that reads.

        Args:
            pixels: Shape (n, H, W, C).
            targets: Shape (n,), or of a multilabel dataset (n, classes).
            size: Of the global batch.
        """
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
