"""A network of one's own with a thousand parameters, whose files are small."""

from __future__ import annotations

import os
import time

from torch import Tensor, nn


class _Slow(nn.Module):
    """Passes its input on, after as many seconds as TINY_SECONDS says."""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(float(os.environ.get("TINY_SECONDS", "0")))
        return images


def tiny(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """One hidden layer."""
    height, width, channels = shape
    return nn.Sequential(
        _Slow(),
        nn.Flatten(),
        nn.Linear(height * width * channels, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )
