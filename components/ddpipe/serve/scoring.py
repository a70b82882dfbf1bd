"""Scores many images at once: predictions as tables, a page that shows them.

images ──▶ model ──▶ tables (tables.py) ──▶ summary.json, predictions.html
"""

from __future__ import annotations

import base64
import heapq
import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from PIL import Image, ImageOps

from ddpipe.errors import ParameterError, UnreadableImages, listed
from ddpipe.processes.progress import progress_bar
from ddpipe.serve.files import File, found
from ddpipe.serve.model import Model, load_model
from ddpipe.serve.prediction import Prediction
from ddpipe.serve.spec import ScoreOptions
from ddpipe.serve.tables import CSV, PARQUET, written
from ddpipe.sources.base import Unreadable
from ddpipe.storage import open_store
from ddpipe.storage.sealed import to_json
from ddpipe.templates import environment

SUMMARY, PAGE = "summary.json", "predictions.html"

UNSURE, PROBLEMS = 24, 20
"""That the page shows."""

SIDE = 160
"""Longest side of a picture on the page, in pixels."""

LARGEST = 32 * 2**20
"""Bytes of an image file that the page shows."""


@dataclass(slots=True)
class _Noted:
    """What the page shows, of bounded size."""

    counts: Counter[str] = field(default_factory=Counter)
    unsure: list[tuple[float, int, Prediction]] = field(default_factory=list)
    problems: list[Prediction] = field(default_factory=list)
    images: int = 0
    unreadable: int = 0

    def add(self, one: Prediction) -> None:
        self.images += 1
        if one.problem:
            self.unreadable += 1
            self.problems += [one][: PROBLEMS - len(self.problems)]
            return
        self.counts.update(one.answer)
        keep = heapq.heappush if len(self.unsure) < UNSURE else heapq.heappushpop
        keep(self.unsure, (-_doubt(one), -self.images, one))


def _doubt(one: Prediction) -> float:
    """How unsure the answer is: the largest probability that any class is wrongly in it, or not in it."""
    return max(1 - value if name in one.answer else value for name, value in one.probabilities.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Predictions that were made.

    Attributes:
        uri: Folder of the tables, the summary and the page.
        model: URI of the package.
        images: How many there were.
        unreadable: How many of them cannot be read.
        shares: Of each class, the fraction of answered images in whose answer it is.
        page: The page, as HTML.
    """

    uri: str
    model: str
    images: int
    unreadable: int
    shares: dict[str, float]
    page: str


def score(model_uri: str, options: ScoreOptions) -> Scored:
    """Predict images, and publish what was predicted."""
    store = open_store(options.predictions)
    store.check_writable()
    model, noted = load_model(model_uri), _Noted()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        images = found(tuple(options.images), options.image_column)
        for one in written(_counted(model, images), model.signature.classes, folder):
            noted.add(one)
        if not noted.images:
            raise ParameterError(
                what="there is no image to predict",
                which=", ".join(options.images)[:500],
                seen="the tables name none",
                do="Give image files, folders, s3:// URIs, or CSV files of paths.",
            )
        for name in (CSV, PARQUET):
            store.upload(folder / name, name)
    scored = _scored(store.uri, model, noted)
    store.write(PAGE, scored.page.encode())
    facts = {name: value for name, value in asdict(scored).items() if name != "page"}
    store.write(SUMMARY, to_json(facts))
    _check_readable(noted, options, store.uri)
    return scored


def _counted(model: Model, files: Iterable[File]) -> Iterator[Prediction]:
    with progress_bar("predicting", None) as progress:
        for one in model.stream(files):
            yield one
            progress.update()


def _scored(uri: str, model: Model, noted: _Noted) -> Scored:
    answered = max(1, noted.images - noted.unreadable)
    facts = {
        "uri": uri,
        "model": model.uri,
        "images": noted.images,
        "unreadable": noted.unreadable,
        "shares": {name: noted.counts[name] / answered for name in model.signature.classes},
    }
    page = environment("ddpipe.serve").get_template("predictions.html.j2")
    unsure = [one for *_, one in sorted(noted.unsure, reverse=True)]
    shown = [(one, _picture(one.image)) for one in unsure]
    html = page.render(**facts, shown=shown, problems=noted.problems)
    return Scored(**facts, page=html)  # type: ignore[arg-type]  # by name


def _picture(name: str) -> str:
    """A small PNG of an image as a data: URI; empty if it is none that a browser could show."""
    try:
        data = File.at(name).read()
        if len(data) > LARGEST:
            return ""
        with Image.open(io.BytesIO(data)) as opened:
            opened.draft("RGB", (SIDE, SIDE))
            small = ImageOps.exif_transpose(opened)
            small.thumbnail((SIDE, SIDE))
            buffer = io.BytesIO()
            small.convert("RGB").save(buffer, "PNG")
    except (Unreadable, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _check_readable(noted: _Noted, options: ScoreOptions, uri: str) -> None:
    if noted.unreadable <= options.most_unreadable * noted.images:
        return
    raise UnreadableImages(
        what="some images cannot be predicted",
        which=f"{noted.unreadable:,} of {noted.images:,} images",
        seen=listed([f"{one.image}: {one.problem}" for one in noted.problems], PROBLEMS),
        do=f"The other images are answered, in {uri}. Repair these files, leave them out, or allow them with "
        "--most-unreadable.",
    )
