"""A run -> one self-contained HTML report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ddpipe.data.catalogue import per_class
from ddpipe.data.manifest import SPLITS, DatasetManifest, load_manifest, store_of
from ddpipe.data.versions import origin
from ddpipe.evaluate import figures
from ddpipe.evaluate.measure import ClassCurves, class_curves
from ddpipe.evaluate.mistakes import Mistake, worst_mistakes
from ddpipe.model import VIEWS
from ddpipe.model.evaluation import Evaluation, Metrics, load_evaluation
from ddpipe.model.metrics import METRICS, TITLES
from ddpipe.model.package import ModelPackage, load_package
from ddpipe.model.training_record import how_far, training_record
from ddpipe.model.verdict import FEWEST, Verdict, load_verdict
from ddpipe.processes.reports import duration
from ddpipe.templates import environment, png_uri, with_contents

CURVES = 40  # classes whose curves are computed
THUMBNAIL = 192  # largest side of a picture, in pixels; the page enlarges small ones


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of a report; an evaluation that is not part of a run has no record of a training."""

    run: str
    manifest: DatasetManifest
    training: Mapping[str, Any]
    evaluation: Evaluation
    mistakes: Sequence[Mistake]
    location: str = ""
    curves: Mapping[str, ClassCurves] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    package: ModelPackage | None = None
    since: str = ""  # the run, and when it ended, whose model this one took over, as nothing had changed
    verdict: Verdict | None = None  # of the gate
    data_page: str = ""  # the report on the data, from where the page is


def gather(
    run: str,
    training_uri: str,
    evaluation_uri: str,
    package_uri: str | None = None,
    seconds: Mapping[str, float] | None = None,
    since: str = "",
    gate_uri: str | None = None,
    data_page: str = "",
) -> RunRecord:
    """Read what the steps of a run left behind."""
    found, training = gather_evaluation(evaluation_uri), training_record(training_uri)
    times = dict(seconds or {})
    if "train" in times and not since:
        # The step's record knows its last attempt only.
        times["train"] = max(times["train"], training["seconds"])
    return replace(
        found,
        run=run,
        training=training,
        seconds=times,
        package=load_package(package_uri) if package_uri else None,
        since=since,
        verdict=load_verdict(gate_uri) if gate_uri else None,
        data_page=data_page,
    )


def gather_evaluation(uri: str) -> RunRecord:
    """What an evaluation left behind that is not part of a run."""
    evaluation = load_evaluation(uri)
    manifest = load_manifest(evaluation.subject.dataset)
    return RunRecord(
        run=evaluation.subject.training,
        manifest=manifest,
        location=origin(manifest, store_of(evaluation.subject.dataset)).get("location", ""),
        training={},
        evaluation=evaluation,
        mistakes=worst_mistakes(evaluation, manifest.classes),
        curves=drawn(evaluation),
    )


def drawn(evaluation: Evaluation) -> dict[str, ClassCurves]:
    """The curves of the classes, if there are few enough."""
    metrics = evaluation.metrics
    return class_curves(*evaluation.calibrated(), metrics) if len(metrics.classes) <= CURVES else {}


def render(record: RunRecord) -> str:
    """The page: no script, nothing fetched, every name escaped."""
    pages = environment("ddpipe.evaluate")
    shown = (change, duration, how_far, percent, picture, ratio, score)
    pages.filters.update({one.__name__: one for one in shown}, thousands="{:,}".format)
    manifest, metrics = record.manifest, record.evaluation.metrics
    right = sum(row[label] for label, row in enumerate(metrics.confusion_matrix))
    counts = {split: per_class(manifest, split) for split in SPLITS}
    lowest = _lowest({scores.name: scores.auc for scores in metrics.classes})
    least = _lowest({scores.name: scores.average_precision for scores in metrics.classes})
    rocs = {name: one.roc for name, one in record.curves.items() if one.roc}
    traded = {name: one.precision_recall for name, one in record.curves.items() if one.precision_recall}
    page = pages.get_template(f"{metrics.task}.html.j2").render(
        record=record,
        subject=record.evaluation.subject,
        location=record.location,
        metrics=metrics,
        views=VIEWS[record.evaluation.subject.views],
        headline=metrics.headline,
        titles=TITLES,
        fewest=FEWEST,
        splits=SPLITS,
        sizes={split: manifest.splits[split].count for split in SPLITS},
        class_counts={name: [counts[split][name] for split in SPLITS] for name in manifest.classes},
        right=right,
        wrong=metrics.samples - right,
        learning_curves=figures.learning_curves(record.training["history"]) if record.training else {},
        roc=figures.roc_curves(metrics.roc, rocs, lowest) if metrics.roc.threshold else None,
        lowest=lowest if lowest in rocs else None,
        precision_recall=figures.precision_recall_curves(traded, least) if traded else None,
        least=least,
        reliability=figures.reliability(metrics.calibration, metrics.before),
        confusions=confusions(metrics),
        all_drawn=len(record.curves) <= figures.DISTINCT,
        again=again(record) if record.training else "",
    )
    return with_contents(page)


def _lowest(scores: Mapping[str, float | None]) -> str | None:
    """The first of the classes with the lowest score; None if no class has one."""
    known = {name: score for name, score in scores.items() if score is not None}
    return min(known, key=known.__getitem__, default=None)


def again(record: RunRecord) -> str:
    """The command that trains the model again, under another name."""
    training, dataset = record.training, record.evaluation.subject.dataset
    named = ["--dataset", dataset, "--run", f"{record.run}-again", "--recipe", json.dumps(training["recipe"])]
    processes = ["--processes", str(training["world_size"])] if training["world_size"] > 1 else []
    return shlex.join(["ddpipe", "train", *named, *processes])


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
    return png_uri(drawn)


def percent(share: float, digits: int = 1) -> str:
    """A fraction as a percentage."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def score(value: float, name: str) -> str:
    """A score by its name: a share in percent, the others as they are."""
    return percent(value) if METRICS[name].is_share else f"{value:.4f}"


def change(value: float, name: str) -> str:
    """A difference of scores with its sign: of shares in percentage points, of others as it is."""
    return f"{100 * value:+.1f} points" if METRICS[name].is_share else f"{value:+.4f}"


def ratio(value: float | None) -> str:
    """A number between 0 and 1, or a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"  # noqa: RUF001 - a dash, for readers
