"""ddpipe beside what a person with a folder of pictures would pick instead, each with the same minutes.

    DDPIPE_IMAGES=cifar10.tar.gz DDPIPE_MNIST=mnist DDPIPE_EMOJI=emoji-datasource-twitter-14.0.0.tgz \\
        python benchmarks/race.py [--minutes 1 3] [--sets digits …] [--racers ddpipe …]

The racers are the programs in racers/, as a user writes them by the documentation of each, without weights
of earlier trainings. Each gets a folder with train/<class>/, its minutes, and the side of the pictures in
pixels, which ddpipe does not need, in an environment of its own in the user's cache folder. Then it
predicts the held-out pictures of test/<class>/. $DDPIPE_EMOJI is the archive of that npm package.

On an otherwise idle machine; writes benchmarks/results/race.md, and what was measured to race.json, from
which a stopped race resumes. Log loss and calibration error (15 equal bins) are those of probabilities of
at least 1e-6. The first prediction is that of a new process, for one picture.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from image_sets import from_archive, tiles
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.first_sets import glyphs, many_sizes  # noqa: E402 - after the line above

RESULTS = HERE / "results"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ddpipe-bench"
TESTED = 0.25
"""Of the pictures of each class."""
LEAST = 1e-6
"""What a probability counts as at least."""

RACERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "ddpipe": ("with_ddpipe", [f"{ROOT}[train]", "pandas"]),
    "fastai": ("with_fastai", ["fastai"]),
    "ultralytics": ("with_ultralytics", ["ultralytics", "pandas"]),
    "AutoGluon": ("with_autogluon", ["autogluon.multimodal"]),
    "scikit-learn": ("with_scikit_learn", ["scikit-learn", "pandas", "pillow"]),
}
"""The program of each racer, and the packages that it needs."""


def digits(folder: Path) -> None:
    """2,000 of MNIST's test images, of 28 by 28 pixels."""
    place = Path(os.environ["DDPIPE_MNIST"])
    labels = gzip.decompress((place / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:2008]
    pixels = gzip.decompress((place / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    pictures = np.frombuffer(pixels, np.uint8).reshape(-1, 28, 28)
    for number, label in enumerate(labels):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[number]).save(folder / str(label) / f"{number:04}.png")


def emoji(folder: Path) -> None:
    """The pictures of 64 pixels in the package, in their groups; skin tones are left out."""
    with tarfile.open(os.environ["DDPIPE_EMOJI"]) as tar:
        listed = json.load(tar.extractfile("package/emoji.json"))  # type: ignore[arg-type]
        groups = {one["image"]: one["category"] for one in listed if one["category"] != "Component"}
        for member in tar:
            name = Path(member.name)
            if name.parent.name == "64" and name.name in groups:
                place = folder / groups[name.name].replace(" & ", "-and-").lower()
                place.mkdir(parents=True, exist_ok=True)
                data = tar.extractfile(member).read()  # type: ignore[union-attr]
                # Their transparent ground is white, for those who would take it as black.
                picture = Image.open(io.BytesIO(data)).convert("RGBA")
                ground = Image.new("RGBA", picture.size, "white")
                Image.alpha_composite(ground, picture).convert("RGB").save(place / name.name)


SETS: Mapping[str, tuple[int, Callable[[Path], Any]]] = {
    "CIFAR-10, 400 of each class": (32, lambda folder: from_archive(folder, {}, 400)),
    "emoji in their groups": (64, emoji),
    "40 kinds of glyphs": (32, glyphs),
    "tiles of photographs": (128, lambda folder: tiles(folder, 150)),
    "digits": (32, digits),
    "textures of many sizes": (96, many_sizes),
}
"""The side that pictures are given for who must choose one, and what draws the set."""


def split(drawn: Path, folder: Path) -> None:
    """Move a quarter of each class, drawn from a seed, to test/, and the others to train/."""
    random = np.random.default_rng(0)
    for label in sorted(drawn.iterdir()):
        files = sorted(label.iterdir())
        held_out = set(random.permutation(len(files))[: round(TESTED * len(files))].tolist())
        for number, file in enumerate(files):
            place = folder / ("test" if number in held_out else "train") / label.name
            place.mkdir(parents=True, exist_ok=True)
            file.rename(place / file.name)


def environment(racer: str) -> Path:
    """The interpreter of a racer's environment, which is made if it is not there."""
    folder = CACHE / f"race-{racer.lower()}"
    if not (folder / "made").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--clear", folder], check=True)
        packages = RACERS[racer][1]
        subprocess.run(
            [*uv, "pip", "install", "--quiet", "--python", folder / "bin/python", *packages], check=True
        )
        (folder / "made").touch()
    return folder / "bin" / "python"


def race(racer: str, folder: Path, minutes: float, side: int) -> dict[str, Any]:
    """Train one racer in an empty folder, and score its predictions."""
    python, variables = environment(racer), os.environ | {"PYTHONPATH": str(HERE / "racers")}
    with tempfile.TemporaryDirectory() as work:

        def run(call: str) -> float:
            command = [python, "-c", f"import {RACERS[racer][0]} as racer; racer.{call}"]
            began = time.monotonic()
            with Path(work, "log").open("a") as log:
                done = subprocess.run(command, cwd=work, env=variables, stdout=log, stderr=log, check=False)
            if done.returncode:
                raise SystemExit(f"{racer} failed:\n{Path(work, 'log').read_text()[-3000:]}")
            return time.monotonic() - began

        own = Path(work, "pictures")  # one of them writes folders beside those that it reads
        shutil.copytree(folder, own)
        trained = run(f"train({str(own)!r}, {minutes:g}, {side})")
        predicted = run(f"predict({str(folder / 'test')!r})")
        scores = score(folder / "test", Path(work, "predictions.csv"))
        one = Path(work, "one", "picture")
        one.mkdir(parents=True)
        shutil.copy(next((folder / "test").rglob("*.*")), one)
        first = run(f"predict({str(one.parent)!r})")
        return scores | {
            "trained": trained,
            "predicted": predicted,
            "first": first,
            "load": os.getloadavg()[1],
        }


def score(test: Path, predictions: Path) -> dict[str, float]:
    """Accuracy, log loss and calibration error of a table with `image` and a column for each class."""
    files = sorted(path for path in test.rglob("*") if path.is_file())
    classes = sorted(label.name for label in test.iterdir())
    with predictions.open(newline="") as text:
        found = {Path(row["image"]).parts[-2:]: row for row in csv.DictReader(text)}
    rows = [[float(found[file.parts[-2:]][name]) for name in classes] for file in files]
    probabilities = np.clip(np.array(rows), LEAST, None)
    probabilities /= probabilities.sum(1, keepdims=True)
    truth = np.array([classes.index(file.parent.name) for file in files])
    surest, is_right = probabilities.max(1), probabilities.argmax(1) == truth
    error, edges = 0.0, np.linspace(0, 1, 16)
    for low, high in pairwise(edges):
        inside = (low < surest) & (surest <= high)
        if inside.any():
            error += inside.mean() * abs(surest[inside].mean() - is_right[inside].mean())
    return {
        "accuracy": float(is_right.mean()),
        "log_loss": float(-np.log(probabilities[np.arange(len(truth)), truth]).mean()),
        "calibration": float(error),
    }


def lines_written(racer: str) -> int:
    """Lines of a racer's program that are neither empty nor prose."""
    text = (HERE / "racers" / f"{RACERS[racer][0]}.py").read_text()
    return sum(bool(line.strip()) and not line.startswith('"""') for line in text.splitlines())


def megabytes(racer: str) -> float:
    """What its environment takes on the disk."""
    files = environment(racer).parent.parent.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink()) / 1e6


def page(measured: Mapping[str, Any]) -> str:
    """The tables: of the racers, and of each set and number of minutes."""
    text = "# The race\n\n| | megabytes installed | lines written |\n|---|---|---|\n"
    raced = {key.rpartition("/")[2] for key in measured}
    for racer in filter(raced.__contains__, RACERS):
        text += f"| {racer} | {megabytes(racer):,.0f} | {lines_written(racer)} |\n"
    text += (
        "\n| set | minutes | with | accuracy | log loss | calibration error | training | first prediction |"
        "\n|---|---|---|---|---|---|---|---|\n"
    )
    for key, one in sorted(measured.items(), key=_place):
        text += f"| {key.replace('/', ' | ')} | {one['accuracy']:.4f} | {one['log_loss']:.3f} "
        text += f"| {one['calibration']:.3f} | {one['trained']:.0f} s | {one['first']:.1f} s |\n"
    return text


def _place(one: tuple[str, Any]) -> tuple[float, int, int]:
    """Where a result stands: by its minutes, its set and its racer."""
    name, minutes, racer = one[0].rsplit("/", 2)
    return float(minutes), list(SETS).index(name), list(RACERS).index(racer)


def main() -> None:
    """Race over each set, all racers one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 3])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--racers", nargs="+", choices=RACERS, default=list(RACERS))
    given = parser.parse_args()
    log = RESULTS / "race.json"
    measured = json.loads(log.read_text()) if log.exists() else {}
    for minutes in given.minutes:
        for name in given.sets:
            side, draw = SETS[name]
            keys = {racer: f"{name}/{minutes:g}/{racer}" for racer in given.racers}
            if measured.keys() >= set(keys.values()):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                draw(Path(scratch, "drawn"))
                folder = Path(scratch, "pictures")
                split(Path(scratch, "drawn"), folder)
                for racer, key in keys.items():
                    if key not in measured:
                        measured[key] = race(racer, folder, minutes, side)
                        sys.stdout.write(f"{key}: {measured[key]}\n")
                        sys.stdout.flush()
                        log.write_text(json.dumps(measured, indent=1) + "\n")
    (RESULTS / "race.md").write_text(page(measured))


if __name__ == "__main__":
    main()
