"""Predictions of many images: a table, numbers, and a page with the answers that the model is least sure of.

images ──▶ model ──▶ Tally ──▶ predictions.csv, summary.json, predictions.html

Everything is written while it is made; what is counted and shown is of bounded size.
"""

from __future__ import annotations

import csv
import heapq
import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from ddpipe.errors import ParameterError, UnreadableImages, listed
from ddpipe.processes.progress import progress_bar
from ddpipe.serve.naming import ImageFile
from ddpipe.serve.predictor import Prediction, Predictor
from ddpipe.serve.settings import PredictOptions
from ddpipe.sources.base import Unreadable
from ddpipe.storage import Store
from ddpipe.storage.sealed import to_json
from ddpipe.templates import csv_cell, environment, png_uri

TABLE, SUMMARY, PAGE = "predictions.csv", "summary.json", "predictions.html"

UNSURE, PROBLEMS = 24, 20  # that the page shows
SIDE = 160  # longest side of a picture on the page, in pixels
LARGEST = 32 * 2**20  # bytes of an image file that the page shows


@dataclass(slots=True)
class Tally:
    """What was predicted so far."""

    images: int = 0
    unreadable: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[Prediction] = field(default_factory=list)
    unsure: list[tuple[float, int, Prediction]] = field(default_factory=list)

    def watched(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """The same predictions, counted, under a progress bar; an error if there is none."""
        with progress_bar("predicting", None) as progress:
            for one in predictions:
                self._add(one)
                yield one
                progress.update()
        if not self.images:
            raise ParameterError(
                what="there is no image to predict",
                which="`images` and the tables that it names",
                seen="they name none",
                do="Give image files, folders, s3:// URIs, or CSV files of paths.",
            )

    def _add(self, one: Prediction) -> None:
        self.images += 1
        self.warnings.update(one.warnings)
        if one.problem:
            self.unreadable += 1
            self.problems += [one][: PROBLEMS - len(self.problems)]
            return
        self.counts.update(one.answer)
        keep = heapq.heappush if len(self.unsure) < UNSURE else heapq.heappushpop
        # The largest probability that any class is wrongly in the answer, or not in it.
        doubt = max(1 - value if name in one.answer else value for name, value in one.probabilities.items())
        keep(self.unsure, (-doubt, -self.images, one))

    def check_readable(self, options: PredictOptions) -> None:
        """Raise UnreadableImages if there are more unreadable images than allowed."""
        if self.unreadable <= options.most_unreadable * self.images:
            return
        problems = [f"{one.image}: {one.problem}" for one in self.problems]
        if more := self.unreadable - len(problems):
            problems.append(f"and {more:,} more, in the output")
        raise UnreadableImages(
            what="some images cannot be predicted",
            which=f"{self.unreadable:,} of {self.images:,} images",
            seen=listed(problems, PROBLEMS + 1),
            do=f"The other images are answered{options.table and f', in {options.table}'}. Repair these "
            f"files, leave them out, or allow them with `most_unreadable`.",
        )


def write_tables(
    model: Predictor, predictions: Iterable[Prediction], tally: Tally, store: Store
) -> tuple[dict[str, Any], str]:
    """Write all predictions, which `tally` watches; returns what summary.json has, and the page."""
    classes = model.signature.classes
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, TABLE)
        with path.open("w", encoding="utf-8", newline="") as text:
            lines = csv.writer(text, lineterminator="\n")
            lines.writerow(["image", "answer", *map(csv_cell, classes), "warnings", "problem"])
            for one in predictions:
                values = [f"{one.probabilities[name]:.6f}" if one.probabilities else "" for name in classes]
                first, last = (one.image, ";".join(one.answer)), ("; ".join(one.warnings), one.problem)
                lines.writerow([*map(csv_cell, first), *values, *map(csv_cell, last)])
        store.upload(path, TABLE)
    answered = max(1, tally.images - tally.unreadable)
    facts = {
        "uri": store.uri,
        "model": model.uri,
        "images": tally.images,
        "unreadable": tally.unreadable,
        "shares": {name: tally.counts[name] / answered for name in classes},
    }
    unsure = [one for *_, one in sorted(tally.unsure, reverse=True)]
    shown = [(one, _picture(one.image)) for one in unsure]
    template = environment("ddpipe.serve").get_template("predictions.html.j2")
    page = template.render(**facts, shown=shown, problems=tally.problems)
    store.write(PAGE, page.encode())
    store.write(SUMMARY, to_json(facts))  # last: who sees it finds the others
    return facts, page


def _picture(name: str) -> str:
    """A small PNG of an image as a data: URI; empty if it is none that a browser could show."""
    try:
        data = ImageFile.at(name).read()
        if len(data) > LARGEST:
            return ""
        with Image.open(io.BytesIO(data)) as opened:
            opened.draft("RGB", (SIDE, SIDE))
            small = ImageOps.exif_transpose(opened)
            small.thumbnail((SIDE, SIDE))
            return png_uri(small.convert("RGB"))
    except (Unreadable, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
