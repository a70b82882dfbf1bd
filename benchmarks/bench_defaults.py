"""What the data chooses, beside the former default, every preset, recipes by hand, and logistic regression.

    DDPIPE_IMAGES=cifar10.tar.gz DDPIPE_MNIST=mnist python benchmarks/bench_defaults.py [--only digits forty]

Writes benchmarks/results/defaults.md. $DDPIPE_IMAGES is an archive of train/<class>/*.jpg of 32 by 32 pixels,
$DDPIPE_MNIST a folder of MNIST's files; without them their sets are skipped. Photographs are tiles of the
pictures that scikit-learn carries, and of those of scikit-image if it is installed. Every result is added to
--log at once, and what is there is not run again, so that a long comparison can be continued. A score
is the accuracy, or macro AUC for several labels, on the test split; times are CPU seconds of one process.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_image
from sklearn.linear_model import LogisticRegression

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.train.presets import PRESETS, recipe_of
from ddpipe.train.recipe import Recipe
from ddpipe.train.train import train

RESULTS = Path(__file__).parent / "results" / "defaults.md"
DEFAULT, REGRESSION = "default", "logistic regression on pixels"
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


def xrays(folder: Path, count: int = 800) -> dict[str, Any]:
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
    "CIFAR-10, 5,000 per class": lambda folder: from_archive(folder, {}, 5000),
    "photographs": lambda folder: tiles(folder, 30),
    "X-ray-like, three labels": xrays,
    "40 images": lambda folder: (
        from_archive(folder, {"frog": 520, "ship": 520})
        | {"test_fraction": 0.96, "validation_fraction": 0.005}
    ),
    "imbalanced 1:50": lambda folder: from_archive(folder, {"cat": 1500, "automobile": 30}),
    "512 pixels": lambda folder: tiles(folder, 50, side=512),
}
"""What prepare is asked for, by the name of the set."""


def by_hand(count: int) -> Iterator[tuple[str, Recipe]]:
    """So many recipes, spread over a grid of networks, rates, steps and augmentations."""
    rates = {"fast-cnn": (0.03, 0.1), "fast-cnn-small": (0.03, 0.1), "lenet": (0.01, 0.05)}
    rates |= {"digits-cnn": (0.03, 0.1), "resnet18": (0.01, 0.05)}
    grid = [
        (model, rate, epochs, augmentation)
        for model, pair in rates.items()
        for rate, epochs, augmentation in itertools.product(pair, (10, 40), ("none", "shift-flip"))
    ]
    for place in np.linspace(0, len(grid) - 1, count).round().astype(int).tolist():
        model, rate, epochs, augmentation = grid[place]
        values: dict[str, Any] = {"model": model, "learning_rate": rate, "epochs": epochs}
        values |= {"augmentation": augmentation, "resolution": 64, "batch_size": 32}
        if model.startswith("fast"):
            values |= {"optimizer": "muon", "momentum": 0.6, "schedule": "linear", "warmup_fraction": 0.0}
        yield f"{model}, rate {rate}, {epochs} epochs, {augmentation}", recipe_of("plain", values)


def scored(manifest: str, recipe: Recipe) -> tuple[float, float]:
    """Test score, and CPU seconds."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train(manifest, f"{folder}/training", recipe)
        found = evaluate(f"{folder}/training", manifest, f"{folder}/evaluation")
    return next(iter(found.metrics.scores.values())).value, time.process_time() - began


def regression(uri: str, manifest: DatasetManifest) -> tuple[float, float]:
    """Logistic regression on pixels, of images of at most 32 pixels, for each class or label."""
    began, task = time.process_time(), TASKS[manifest.task]
    height, width, channels = manifest.shape
    share = min(1.0, 32 / min(height, width))
    shape = (round(height * share), round(width * share), channels)
    splits = {name: open_split(uri, name, shape=shape) for name in ("train", "test")}
    pixels = {name: split.images(range(len(split))) for name, split in splits.items()}
    rows = {name: found.reshape(len(found), -1) / 255 for name, found in pixels.items()}

    def logits(labels: Pixels) -> Pixels:
        model = LogisticRegression(C=0.1, max_iter=300).fit(rows["train"], labels)
        return np.asarray(model.decision_function(rows["test"]))

    labels = splits["train"].labels
    if task.exclusive:
        found = logits(labels)
        found = np.stack([-found, found], 1) if found.ndim == 1 else found
    else:
        found = np.stack([logits(column) for column in labels.T], 1)
    truth = task.truth(splits["test"].labels, len(manifest.classes))
    return task.headline(found, truth), time.process_time() - began


def runs(recipes: int) -> Iterator[tuple[str, Recipe | None]]:
    """What is compared, the most informative first."""
    yield DEFAULT, Recipe()
    yield REGRESSION, None
    yield from ((f"preset {name}", recipe_of(name, {})) for name in PRESETS if name != "finetune")
    yield from by_hand(recipes)


def row(name: str, found: Mapping[str, tuple[float, float]]) -> str:
    """A line of the table: the best preset and the best recipe by hand, by their names."""

    def best(start: Callable[[str], bool]) -> str:
        some = {key: value for key, value in found.items() if start(key)}
        if not some:
            return "not run"
        key = max(some, key=lambda one: some[one][0])
        return f"{shown(key)} ({key.removeprefix('preset ')})"

    def shown(key: str) -> str:
        return f"{found[key][0]:.3f} in {found[key][1]:.0f} s" if key in found else "not run"

    hand = [key for key in found if not key.startswith(("preset", DEFAULT, REGRESSION))]
    cells = [name, shown(DEFAULT), shown("preset plain"), shown(REGRESSION)]
    cells += [best(lambda key: key.startswith("preset ") and key != "preset plain")]
    cells += [best(hand.__contains__), str(len(hand))]
    return f"| {' | '.join(cells)} |"


def table(results: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """All sets; what was not run is named."""
    head = (
        "| set | chosen by the data | former default | logistic regression | best other preset "
        "| best recipe by hand | recipes by hand |"
    )
    lines = [head, "|" + "---|" * 7, *(row(name, results.get(name, {})) for name in SETS)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not in the log yet, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--recipes", type=int, default=30, help="by hand")
    parser.add_argument("--log", type=Path, default=Path("defaults.jsonl"))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further run begins")
    given = parser.parse_args(arguments)
    results: dict[str, dict[str, tuple[float, float]]] = {}
    for line in given.log.read_text().splitlines() if given.log.exists() else []:
        name, what, value, seconds = json.loads(line)
        results.setdefault(name, {})[what] = (value, seconds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for number, name in enumerate(given.only):
            wanted = [run for run in runs(given.recipes) if run[0] not in results.get(name, {})]
            if not wanted or time.monotonic() - began > given.seconds:
                continue
            spec = SETS[name](work / str(number))
            uri = prepare(PrepareSpec(store=str(work / "store"), stratify="exact", **spec)).manifest_uri
            for what, recipe in wanted:
                if time.monotonic() - began > given.seconds:
                    break
                found = scored(uri, recipe) if recipe else regression(uri, load_manifest(uri))
                results.setdefault(name, {})[what] = found
                with given.log.open("a") as log:
                    log.write(json.dumps([name, what, *found]) + "\n")
    RESULTS.write_text(f"# Defaults\n\n{table(results)}")
    print(table(results))  # noqa: T201


if __name__ == "__main__":
    main()
