"""Training on mixtures of two images, with their labels mixed alike.

mixup    every pixel is a weighted mean: Zhang et al., ICLR 2018
cutmix   a rectangle of one image lies on the other: Yun et al., ICCV 2019

All ranks draw the same numbers, keyed by seed and step. An image's partner is of the same rank's share.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor
from torch.nn.functional import one_hot

from ddpipe.train.loader import Batch

_KEY = 1
"""Keeps these random numbers apart from others of the same seed and step."""


def mixed(batch: Batch, how: str, alpha: float, *, classes: int, seed: int, step: int) -> Batch:
    """The batch, each sample mixed with its mirror place in the batch.

    Args:
        batch: Images are uint8, shape (n, H, W, C).
        how: "none", "mixup" or "cutmix".
        alpha: Of the symmetric beta distribution that the share of the first image is drawn from.
        classes: How many there are.
        seed: Of the training.
        step: From 0.
    """
    if how == "none":
        return batch
    generator = np.random.default_rng([seed, step, _KEY])
    share = float(generator.beta(alpha, alpha))
    if how == "mixup":
        images = batch.images.float()
        images = images.lerp(images.flip(0), 1 - share)
    else:
        images, share = _cut(batch.images, share, generator)
    labels = batch.labels
    if not labels.is_floating_point():
        labels = one_hot(labels, classes).float()
    return Batch(images, labels.lerp(labels.flip(0), 1 - share), batch.size)


def _cut(images: Tensor, share: float, generator: np.random.Generator) -> tuple[Tensor, float]:
    """The images with rectangles of their partners, and the share of the area that is their own."""
    height, width = images.shape[1:3]
    side = math.sqrt(1 - share)
    rows, columns = round(height * side), round(width * side)
    top, left = (int(generator.integers(0, limit + 1)) for limit in (height - rows, width - columns))
    place = (slice(None), slice(top, top + rows), slice(left, left + columns))
    cut = images.clone()
    cut[place] = images.flip(0)[place]
    return cut, 1 - rows * columns / (height * width)
