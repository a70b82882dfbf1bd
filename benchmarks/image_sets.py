"""Sets of images for benchmarks: what there is, in the number, size and balance that a comparison needs.

$DDPIPE_IMAGES is an archive of train/<class>/*.jpg of 32 by 32 pixels, such as CIFAR-10; $DDPIPE_MNIST a
folder of MNIST's files. Photographs are tiles of the pictures that scikit-learn carries, and of those of
scikit-image if it is installed.
"""

from __future__ import annotations

import csv
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_image

TILE = (160, 200)
LABELS = ("opacity", "line", "ring")
Pixels = npt.NDArray[Any]


def pictures() -> dict[str, Pixels]:
    """Photographs that installed packages carry, by name."""
    found = {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    if spec := find_spec("skimage"):
        folder = Path(spec.submodule_search_locations[0]) / "data"  # type: ignore[index]
        for name in ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg"):
            found[Path(name).stem] = np.asarray(Image.open(folder / name).convert("RGB"))
    else:
        for name in list(found):
            left, right = np.array_split(found.pop(name), 2, axis=1)
            found |= {f"{name}-left": left, f"{name}-right": right}
    return found


def tiles(folder: Path, each: int, names: Sequence[str] = (), side: int = 0) -> dict[str, Any]:
    """So many tiles of each picture, which overlap; scaled to squares of a side if it is not 0."""
    random = np.random.default_rng(0)
    for name, picture in pictures().items():
        if names and name not in names:
            continue
        (folder / name).mkdir(parents=True)
        for number in range(each):
            height, width = (int(random.integers(140, 300)),) * 2 if side else TILE
            top, left = (
                int(random.integers(0, limit - size + 1))
                for limit, size in zip(picture.shape, (height, width), strict=False)
            )
            tile = Image.fromarray(picture[top : top + height, left : left + width])
            (tile.resize((side, side)) if side else tile).save(folder / name / f"{number:03}.jpg", quality=92)
    return {"source": "folder", "source_path": str(folder)}


def from_archive(folder: Path, counts: Mapping[str, int], every: int = 0) -> dict[str, Any]:
    """The first images of classes of $DDPIPE_IMAGES; of those not named, `every`."""
    seen: dict[str, int] = {}
    with tarfile.open(os.environ["DDPIPE_IMAGES"]) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            split, label, file = member.name.split("/")[-3:]
            if split != "train" or seen.get(label, 0) >= counts.get(label, every):
                continue
            seen[label] = seen.get(label, 0) + 1
            (folder / label).mkdir(parents=True, exist_ok=True)
            (folder / label / file).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    return {"source": "folder", "source_path": str(folder)}


def xrays(folder: Path, count: int = 300) -> dict[str, Any]:
    """Grey images of 160 pixels in the manner of X-rays, with three labels of different frequency."""
    random, (rows, columns) = np.random.default_rng(0), np.mgrid[0:160, 0:160]
    (folder / "train").mkdir(parents=True)
    with (folder / "train.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", *LABELS])
        for number in range(count):
            shown = (random.random(3) < (0.4, 0.25, 0.15)).astype(int).tolist()
            image = 90 + 500 * gaussian_filter(random.normal(size=(160, 160)), 12)
            image += random.normal(0, 12, (160, 160))
            for lung in (45, 115):
                image += 40 * np.exp(-(((columns - lung) / 25) ** 2) - ((rows - 80) / 55) ** 2)
            row, column = random.integers(40, 120, 2)
            distance = np.hypot(rows - row, columns - column)
            if shown[0]:
                image += 35 * np.exp(-((distance / 9) ** 2))
            if shown[1]:
                row, slope = random.integers(40, 120), random.uniform(-0.5, 0.5)
                image[np.abs(rows - row - slope * (columns - 80)) < 2] += 35
            if shown[2]:
                row, column = random.integers(40, 120, 2)
                image[np.abs(np.hypot(rows - row, columns - column) - 12) < 2] += 35
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "train" / f"{number:04}.png")
            table.writerow([f"train/{number:04}.png", *shown])
    return {"source": "csv", "source_path": str(folder), "table": "train.csv"}


SETS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "digits": lambda _: {"source": "digits"},
    "MNIST, 10,000": lambda _: {"source": "mnist", "source_path": os.environ["DDPIPE_MNIST"]},
    "CIFAR-10, 300 per class": lambda folder: from_archive(folder, {}, 300),
    "CIFAR-10, 1,500 per class": lambda folder: from_archive(folder, {}, 1500),
    "photographs": lambda folder: tiles(folder, 20),
    "X-ray-like, three labels": xrays,
    "40 images": lambda folder: (
        from_archive(folder, {"frog": 520, "ship": 520})
        | {"test_fraction": 0.96, "validation_fraction": 0.005}
    ),
    "imbalanced 1:50": lambda folder: from_archive(folder, {"cat": 1500, "automobile": 30}),
    "512 pixels": lambda folder: tiles(folder, 25, side=512),
}
"""What prepare is asked for, by the name of the set."""
