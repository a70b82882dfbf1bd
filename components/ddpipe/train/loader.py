"""Batches on the device: this rank's shares of an epoch, in the order of `order`, as a step sees them.

Progressive resizing shows smaller images to early steps, which cost less: Howard, "Training ImageNet in 3
hours for USD 25", fast.ai, 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from ddpipe.data.manifest import Shape
from ddpipe.data.prefetch import prefetched
from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.architectures import Classifier
from ddpipe.train.augment import augmented
from ddpipe.train.choices import AUGMENTATIONS, Augmentation
from ddpipe.train.order import global_batch, permutation, share_of, steps_per_epoch
from ddpipe.train.recipe import Recipe

FULL_RESOLUTION_FROM = 0.5
"""Share of all steps after which images have their full size."""

MULTIPLE = 4
"""Pixels that the sides of smaller images are a multiple of."""


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


def resolution(recipe: Recipe, step: int, steps: int) -> float:
    """The share of the images' sides that the network sees in a step."""
    return recipe.initial_resolution if step < FULL_RESOLUTION_FROM * steps else 1.0


def resized(images: Tensor, share: float) -> Tensor:
    """Images, shape (n, H, W, C), with this share of their sides."""
    if share == 1:
        return images
    sides = [max(MULTIPLE, round(side * share / MULTIPLE) * MULTIPLE) for side in images.shape[1:3]]
    smaller: Tensor = resize(images.permute(0, 3, 1, 2), sides, antialias=True)
    return smaller.permute(0, 2, 3, 1)


@torch.no_grad()
def check_resolution(classifier: Classifier, shape: Shape, recipe: Recipe) -> None:
    """Reject smaller images for a network that accepts only one size, or only larger ones.

    Args:
        classifier: Runs once, in evaluation mode; afterwards it is in training mode.
        shape: Height, width and channels of the dataset's images.
        recipe: Defines the share of their sides in the first step.
    """
    if recipe.initial_resolution == 1:
        return
    smallest = resized(torch.zeros(1, *shape, dtype=torch.uint8), recipe.initial_resolution)
    classifier.eval()
    try:
        classifier(smallest)
    except RuntimeError as error:
        raise ParameterError(
            what="training cannot start",
            which=f"model {recipe.model!r}",
            seen=f"with initial_resolution {recipe.initial_resolution:g} it would get images of "
            f"{smallest.shape[1]}x{smallest.shape[2]} pixels, which it does not accept ({error})",
            do="Set initial_resolution to 1, or choose a model that accepts images of any size.",
        ) from error
    finally:
        classifier.train()
