"""Logits of a whole split, every sample exactly once, by any number of processes.

Test-time views are part of a model, so that the exported model computes what was evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ddpipe.data.reader import SplitReader, prefetched
from ddpipe.distributed import World

PIXELS = 2**21
"""In one batch, at most: 512 images of 64 x 64, 41 of 224 x 224, 8 of 512 x 512.

Memory grows with pixels: ResNet-18 needs about 0.3 GB for a batch of these, and 18 GB for 512 images of
512 x 512, where a training step needs 0.5 GB.
"""

Answer = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
"""Pixels, shape (n, H, W, C) -> logits, shape (n, classes)."""


def logits_by(model: nn.Module, device: str = "cpu") -> Answer:
    """What a PyTorch model in evaluation mode answers, on the device where it is."""

    def answer(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            logits: npt.NDArray[np.float32] = model(torch.from_numpy(images).to(device)).float().cpu().numpy()
        return logits

    return answer


def answers_to(samples: SplitReader, answer: Answer, most: int) -> npt.NDArray[np.float32]:
    """What a model in this process answers to a whole split, shape (samples, classes), in its order."""
    size, rows = batch_size_for(samples.shape, most), range(len(samples))
    batches = (rows[start : start + size] for start in range(0, len(samples), size))
    return np.concatenate([answer(images) for images in prefetched(samples.images, batches, threads=1)])


def batch_size_for(shape: tuple[int, int, int], most: int) -> int:
    """Images per batch: as many as wanted, or as fit into `PIXELS`, and at least one."""
    height, width, _ = shape
    return max(1, min(most, PIXELS // (height * width)))


def logits_of(
    model: nn.Module, samples: SplitReader, world: World, *, classes: int, batch_size: int
) -> npt.NDArray[np.float32]:
    """All samples' logits, float32, shape (samples, classes), on rank 0; no rows on the other ranks.

    Ranks share whole batches, so the bits do not depend on their number: with 5 batches and 2 ranks, rank 0
    has batches 0, 2, 4 and rank 1 has 1, 3 and 4 again, as a sharded model is whole only while all ranks
    compute.
    """
    batch_size = batch_size_for(samples.shape, batch_size)
    batches = -(-len(samples) // batch_size)
    rounds = -(-batches // world.size)
    starts = [batch_size * min(one * world.size + world.rank, batches - 1) for one in range(rounds)]
    mine = [range(len(samples))[start : start + batch_size] for start in starts]
    # Every batch has the same number of rows; rows that the last batch leaves empty are cut off at the end.
    logits = np.zeros((len(mine), batch_size, classes), np.float32)
    with torch.no_grad():
        for rows, images in zip(logits, prefetched(samples.images, mine, threads=1), strict=True):
            rows[: len(images)] = model(torch.from_numpy(images).to(world.device)).float().cpu().numpy()
    own = len(world.share(batches))
    return world.gather(logits[:own]).reshape(-1, classes)[: len(samples)]


SHIFT = 1 / 32  # of an image's sides: one pixel of a small one


class Averaged(nn.Module):
    """The mean of a classifier's logits over several views of an image, as in arXiv:2404.00498, part 3.5."""

    def __init__(self, classifier: nn.Module, *, shifted: bool) -> None:
        super().__init__()
        self.classifier = classifier
        self.shifted = shifted

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of uint8 images, shape (N, H, W, C): one pass for each view."""
        return self.of_each(images).mean(0)

    def of_each(self, images: Tensor) -> Tensor:
        """Logits of each view, shape (views, N, classes)."""
        return torch.stack([self.classifier(view) for view in self._views(images)])

    def _views(self, images: Tensor) -> Iterator[Tensor]:
        """Each shift of the images, as it is and mirrored."""
        for direction in (-1, 0, 1) if self.shifted else (0,):
            moved = _along_the_diagonal(images, direction) if direction else images
            yield moved
            yield moved.flip(2)


class Compared(nn.Module):
    """The mean of a classifier's logits over views, and next to it the logits of the image as it is."""

    def __init__(self, averaged: Averaged) -> None:
        super().__init__()
        self.averaged = averaged
        self._plain = 2 if averaged.shifted else 0

    def forward(self, images: Tensor) -> Tensor:
        """Both logits, shape (N, 2 x classes), of uint8 images, shape (N, H, W, C), in the same passes."""
        logits = self.averaged.of_each(images)
        return torch.cat([logits.mean(0), logits[self._plain]], 1)


def with_views(classifier: nn.Module, views: str) -> nn.Module:
    """The classifier that averages over these views, one of `model.VIEWS`."""
    return classifier if views == "plain" else Averaged(classifier, shifted=views == "flips-and-shifts")


def _along_the_diagonal(images: Tensor, direction: int) -> Tensor:
    """Images moved up and left (-1) or down and right (1); the margin is mirrored."""
    for axis in (1, 2):
        side = images.shape[axis]
        shift = direction * max(1, round(side * SHIFT))
        # Beyond the first or the last pixel, the image is mirrored there.
        places = [side - 1 - abs(side - 1 - abs(place - shift)) for place in range(side)]
        images = images.index_select(axis, torch.tensor(places, device=images.device))
    return images
