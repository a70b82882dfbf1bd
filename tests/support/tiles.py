"""Photographs that no model has seen: tiles of the pictures that scikit-learn carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

TILE = (160, 200)
"""Height and width."""


def tiles(folder: Path, count: int) -> None:
    """Two class folders: so many tiles of the picture of a temple, and of that of a flower.

    Args:
        folder: Where the class folders are made.
        count: Of the tiles in each.
    """
    numbers = np.random.default_rng(0)
    for name, picture in zip(("temple", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            top, left = (numbers.integers(0, picture.shape[axis] - TILE[axis] + 1) for axis in (0, 1))
            tile = picture[top : top + TILE[0], left : left + TILE[1]]
            Image.fromarray(tile).save(folder / name / f"{number:03d}.jpg", quality=90)
