"""A run -> one self-contained HTML page that a person would put in front of a colleague."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from scipy.special import softmax

from ddpipe.data.manifest import SPLITS, DatasetManifest, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.model.evaluation import TITLES, Evaluation, Metrics, load_evaluation
from ddpipe.model.package import ModelPackage, load_package
from ddpipe.storage import open_store

MISTAKES = 24
MATRIX_CLASSES = 20
"""More classes than this make an unreadable matrix: the commonest confusions are listed instead."""

THUMBNAIL = 192
"""Largest side of a picture, in pixels; small images keep their own pixels and the page enlarges them."""

# matplotlib draws in these, the page's style sheet says what they are: light, dark or on paper.
INK, MUTED, GRID, TRAIN, VALIDATION = PALETTE = ("#000001", "#000002", "#000003", "#000004", "#000005")
COLOURS = dict(zip(PALETTE, ("--ink", "--muted", "--line", "--train", "--validation"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A wrong prediction.

    Attributes:
        sample_id: Of the sample.
        image: uint8, shape (H, W, C).
        true: Name of its class.
        predicted: Name of the class that the model chose.
        confidence: The model's probability of the class that it chose.
        doubt: Its probability of the true class.
    """

    sample_id: str
    image: npt.NDArray[np.uint8]
    true: str
    predicted: str
    confidence: float
    doubt: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What there is to tell of a run.

    Attributes:
        run: Its name.
        manifest: The dataset version.
        training: The training's own record, training.json.
        evaluation: On the test split.
        mistakes: The most confident first.
        seconds: Time of each step, in the order in which they ran; those that are known.
        package: The exported model, once there is one.
    """

    run: str
    manifest: DatasetManifest
    training: Mapping[str, Any]
    evaluation: Evaluation
    mistakes: Sequence[Mistake]
    seconds: Mapping[str, float] = field(default_factory=dict)
    package: ModelPackage | None = None


def gather(
    run: str,
    training_uri: str,
    evaluation_uri: str,
    package_uri: str | None = None,
    seconds: Mapping[str, float] | None = None,
) -> RunRecord:
    """Read what the steps of a run left behind.

    Args:
        run: Name of the run.
        training_uri: Output of the training.
        evaluation_uri: Output of the evaluation.
        package_uri: Output of the export, if it has run.
        seconds: Time of each step that has run.

    Raises:
        StoreError: Something is missing or damaged.
        DatasetError: The dataset is damaged.
    """
    evaluation = load_evaluation(evaluation_uri)
    manifest = load_manifest(evaluation.subject.dataset)
    return RunRecord(
        run=run,
        manifest=manifest,
        training=json.loads(open_store(training_uri).read("training.json")),
        evaluation=evaluation,
        mistakes=worst_mistakes(evaluation, manifest.classes),
        seconds=seconds or {},
        package=load_package(package_uri) if package_uri else None,
    )


def worst_mistakes(evaluation: Evaluation, classes: Sequence[str], most: int = MISTAKES) -> list[Mistake]:
    """The wrong predictions of which the model was surest."""
    logits, labels = evaluation.predictions()
    probabilities = softmax(logits.astype(np.float64), axis=1)
    predicted = logits.argmax(axis=1)
    wrong = np.flatnonzero(predicted != labels)
    worst = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")][:most]
    samples = open_split(evaluation.subject.dataset, evaluation.subject.split)
    return [
        Mistake(
            sample_id=samples.sample_ids[index],
            image=image,
            true=classes[labels[index]],
            predicted=classes[predicted[index]],
            confidence=float(probabilities[index, predicted[index]]),
            doubt=float(probabilities[index, labels[index]]),
        )
        for index, image in zip(worst, samples.images(worst), strict=True)
    ]


def render(record: RunRecord) -> str:
    """The page: no script, nothing fetched, every name escaped."""
    pages = Environment(
        loader=PackageLoader("ddpipe.evaluate", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update(
        duration=duration, percent=percent, picture=picture, ratio=ratio, score=score, thousands="{:,}".format
    )
    manifest, metrics = record.manifest, record.evaluation.metrics
    right = sum(row[label] for label, row in enumerate(metrics.confusion_matrix))
    occurrences = [Counter(manifest.splits[split].labels) for split in SPLITS]
    return pages.get_template("report.html.j2").render(
        record=record,
        subject=record.evaluation.subject,
        metrics=metrics,
        titles=TITLES,
        splits=SPLITS,
        sizes={split: len(manifest.splits[split].labels) for split in SPLITS},
        class_counts={
            name: [counter[label] for counter in occurrences] for label, name in enumerate(manifest.classes)
        },
        right=right,
        wrong=metrics.samples - right,
        curves=learning_curves(record.training["history"]),
        confusions=confusions(metrics) if len(metrics.classes) > MATRIX_CLASSES else None,
    )


def learning_curves(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """One SVG for each quantity that was measured on the validation split, over the epochs."""
    quantities = [name.removeprefix("validation_") for name in history[0] if name.startswith("validation_")]
    return {quantity: _curve(history, quantity) for quantity in quantities}


def _curve(history: Sequence[Mapping[str, float]], quantity: str) -> str:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": quantity, "text.color": INK}):
        figure = Figure(figsize=(5, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for part, colour in (("train", TRAIN), ("validation", VALIDATION)):
            name = f"{part}_{quantity}"
            points = [(record["epoch"], record[name]) for record in history if name in record]
            axes.plot(*zip(*points, strict=True), color=colour, label=part, marker="o", markersize=3)
        axes.set_title(f"{quantity} by epoch", loc="left", fontsize=11)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color=GRID, linewidth=0.8)
        axes.spines[:].set_visible(False)
        axes.tick_params(labelcolor=MUTED, length=0)
        axes.legend(frameon=False)
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None})
    svg = drawing.getvalue()
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg[svg.index("<svg") :]


def confusions(metrics: Metrics, most: int = 15) -> list[tuple[int, str, str]]:
    """The commonest confusions: how often, the true class, the predicted one."""
    names = [scores.name for scores in metrics.classes]
    pairs = [
        (count, names[true], names[predicted])
        for true, row in enumerate(metrics.confusion_matrix)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    return sorted(pairs, key=lambda pair: -pair[0])[:most]


def picture(image: npt.NDArray[np.uint8]) -> str:
    """An image, shape (H, W, C) with 1 or 3 channels, as a PNG data URI."""
    drawn = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    drawn.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def duration(seconds: float) -> str:
    """As people say it: "4.6 s", "3 min 20 s", "2 h 05 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def percent(share: float, digits: int = 1) -> str:
    """A share of one, as people say it."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def score(value: float, name: str) -> str:
    """A score by its name: accuracy in percent, the others as they are."""
    return percent(value) if name == "accuracy" else f"{value:.4f}"


def ratio(value: float | None) -> str:
    """A number between 0 and 1, or a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"  # noqa: RUF001 - a dash, for readers
