"""Test-time views as part of a model, so that the exported model computes what was evaluated."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

SHIFT = 1 / 32
"""Of an image's sides: one pixel of a small one."""


class Averaged(nn.Module):
    """The mean of a classifier's logits over several views of an image.

    Shifts along a diagonal in addition to mirror images follow Jordan, arXiv:2404.00498, section 3.5; here
    all six views have equal weight.

    Attributes:
        classifier: From uint8 images, shape (N, H, W, C), to logits, shape (N, classes).
        shifted: Whether to look at images that are shifted, too.
    """

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
    """The mean of a classifier's logits over views, and next to it the logits of the image as it is.

    Args:
        averaged: The classifier with its views.
    """

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
        places = [_reflected(place - shift, side) for place in range(side)]
        images = images.index_select(axis, torch.tensor(places, device=images.device))
    return images


def _reflected(place: int, side: int) -> int:
    """A place beyond the first or the last pixel, mirrored at it."""
    return side - 1 - abs(side - 1 - abs(place))
