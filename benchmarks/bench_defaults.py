"""What the data chooses, beside the former default, named recipes, recipes by hand, and logistic regression.

    DDPIPE_IMAGES=cifar10.tar.gz DDPIPE_MNIST=mnist python benchmarks/bench_defaults.py [--only digits …]

Writes benchmarks/results/defaults.md; image_sets.py describes the sets. Every result is added to --log at
once, and what is there is not run again, so that a long comparison can be continued. A score is the accuracy,
or macro AUC for several labels, on the test split; times are CPU seconds of one process, modules imported.

Recipes by hand are tried as a person would. Where the default takes more than `LONG` seconds, each trains for
a quarter of its epochs first, and the best `BEST` of them in full. On a set of `SEARCHED` only those train
that were best on a smaller set. A recipe that would take more than `TIMES` times as long as the
default is left out after a few steps, as is one that does not suit the images.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from image_sets import SETS, Pixels
from named_recipes import RECIPES
from sklearn.linear_model import LogisticRegression

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.errors import ParameterError
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.train.loop import Trainer
from ddpipe.train.recipe import AT_FIRST, Recipe
from ddpipe.train.train import train

RESULTS = Path(__file__).parent / "results" / "defaults.md"
DEFAULT, REGRESSION, PLAIN, HAND = "default", "logistic regression on pixels", "recipe plain", "by hand: "
QUARTER = "a quarter of "

LONG, BEST = 15, 2

TIMES, PACED = 2, (2, 8)
"""Of the default's seconds; between which steps the pace of a recipe is measured."""

SEARCHED = {"CIFAR-10, 1,500 per class": "CIFAR-10, 300 per class"}
"""Sets that are too large for a search, and where it was done."""

POINTS = 0.02
"""A score lower by more than this misses the goal."""

Found = Mapping[str, tuple[float, float]]
"""Score and CPU seconds by what was run; NaN for what was left out."""


class TooSlow(Exception):
    """It would take too long."""


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
        yield (
            f"{model}, rate {rate}, {epochs} epochs, {augmentation}",
            Recipe.from_dict({**AT_FIRST, **values}),
        )


class Limit:
    """Ends a training that would take more CPU seconds than it may."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, 0.0

    def __call__(self, trainer: Trainer) -> None:
        """Measure the pace over some of the first steps."""
        first, last = PACED
        if trainer.step == first:
            self._began = time.process_time()
        elif trainer.step == last:
            pace = (time.process_time() - self._began) / (last - first)
            if pace * trainer.steps > self._seconds:
                raise TooSlow


def scored(manifest: str, recipe: Recipe, seconds: float = math.inf) -> tuple[float, float]:
    """Test score, and CPU seconds; NaN for a recipe that does not suit the images, or would take too long."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(manifest, f"{folder}/training", recipe, before_step=Limit(seconds))
        except (ParameterError, TooSlow):
            return math.nan, time.process_time() - began
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


class Log:
    """What was run, by set; each result is in the file at once.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, dict[str, tuple[float, float]]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            name, what, value, seconds = json.loads(line)
            self.results.setdefault(name, {})[what] = (value, seconds)

    def add(self, name: str, what: str, found: tuple[float, float]) -> None:
        """Keep a result."""
        self.results.setdefault(name, {})[what] = found
        with self._path.open("a") as file:
            file.write(json.dumps([name, what, *found]) + "\n")


class Comparison:
    """All runs on one set.

    Args:
        name: Of the set.
        uri: Of its manifest.
        log: Of all sets.
        end: When no further run begins, as `time.monotonic`.
    """

    def __init__(self, name: str, uri: str, log: Log, end: float) -> None:
        self._name, self._uri, self._log, self._end = name, uri, log, end

    @property
    def found(self) -> Found:
        """What was run so far."""
        return self._log.results.get(self._name, {})

    def run(self, recipes: int) -> None:
        """Run what is not in the log yet, the most informative first."""
        self._try(DEFAULT, Recipe())
        if REGRESSION not in self.found and time.monotonic() < self._end:
            self._log.add(self._name, REGRESSION, regression(self._uri, load_manifest(self._uri)))
        for name, values in RECIPES.items():
            self._try(f"recipe {name}", Recipe.from_dict(values), self._limit)
        self._by_hand(dict(by_hand(recipes)), self._limit)

    @property
    def _limit(self) -> float:
        return TIMES * self.found[DEFAULT][1] if DEFAULT in self.found else 0.0

    def _by_hand(self, recipes: Mapping[str, Recipe], limit: float) -> None:
        if other := SEARCHED.get(self._name):
            names = best(self._log.results.get(other, {}), HAND, BEST)
        elif limit <= TIMES * LONG:
            names = list(recipes)
        else:
            for name, recipe in recipes.items():
                short = replace(recipe, epochs=max(1, recipe.epochs // 4))
                self._try(QUARTER + name, short, limit / 4)
            names = best(self.found, QUARTER, BEST)
        for name in names:
            self._try(HAND + name, recipes[name], limit)

    def _try(self, what: str, recipe: Recipe, seconds: float = math.inf) -> None:
        if what not in self.found and time.monotonic() < self._end:
            self._log.add(self._name, what, scored(self._uri, recipe, seconds))


def best(found: Found, kind: str, count: int) -> list[str]:
    """The names of those of a kind with the best scores."""
    scores = {
        key.removeprefix(kind): value
        for key, (value, _) in found.items()
        if key.startswith(kind) and not math.isnan(value)
    }
    return sorted(scores, key=lambda name: (-scores[name], found[kind + name][1]))[:count]


def row(name: str, found: Found) -> str:
    """A line of the table: the best recipe by name and the best by hand."""

    def shown(key: str) -> str:
        if key not in found:
            return "not run"
        score, seconds = found[key]
        return "left out" if math.isnan(score) else f"{score:.3f} in {seconds:.1f} s"

    def of_kind(kind: str) -> str:
        names = [one for one in best(found, kind, len(found)) if kind + one != PLAIN]
        return f"{shown(kind + names[0])} ({names[0]})" if names else "not run"

    tried = {
        key.removeprefix(HAND).removeprefix(QUARTER): not math.isnan(score)
        for key, (score, _) in found.items()
        if key.startswith((HAND, QUARTER))
    }
    cells = [name, shown(DEFAULT), shown(PLAIN), shown(REGRESSION), of_kind("recipe "), of_kind(HAND)]
    return f"| {' | '.join([*cells, f'{sum(tried.values())} of {len(tried)}', verdict(found)])} |"


def verdict(found: Found) -> str:
    """What of the goal is missed, against logistic regression and the best recipe by hand."""
    names = best(found, HAND, 1)
    if DEFAULT not in found or REGRESSION not in found or not names:
        return ""
    (score, seconds), (oracle, needed) = found[DEFAULT], found[HAND + names[0]]
    missed = ["below logistic regression"] if score < found[REGRESSION][0] else []
    missed += [f"{100 * (oracle - score):.1f} points below the best"] if score < oracle - POINTS else []
    missed += [f"{seconds / needed:.1f} times its time"] if seconds > TIMES * needed else []
    return ", ".join(missed) or "met"


def table(results: Mapping[str, Found]) -> str:
    """All sets; what was not run is named."""
    head = (
        "| set | chosen by the data | former default | logistic regression | best other recipe by name "
        "| best recipe by hand | recipes that trained | goal |"
    )
    lines = [head, "|" + "---|" * 8, *(row(name, results.get(name, {})) for name in SETS)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not in the log yet, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--recipes", type=int, default=30, help="by hand")
    parser.add_argument("--log", type=Path, default=Path("defaults.jsonl"))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further run begins")
    given = parser.parse_args(arguments)
    log, end = Log(given.log), time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for number, name in enumerate(given.only):
            spec = SETS[name](work / str(number))
            uri = prepare(PrepareSpec(store=str(work / "store"), **spec)).manifest_uri
            if number == 0:
                scored(uri, Recipe.from_dict({**AT_FIRST, "epochs": 1}))  # imports what all need
            Comparison(name, uri, log, end).run(given.recipes)
    RESULTS.write_text(f"# Defaults\n\n{table(log.results)}")
    print(table(log.results))  # noqa: T201


if __name__ == "__main__":
    main()
