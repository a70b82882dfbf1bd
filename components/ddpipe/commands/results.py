"""The results of a step in the form that its caller expects: a person, a script, KFP 1.x or KFP 2.

person, script     standard output: a few lines, or one JSON object with --json
both engines       --write NAME PATH writes one result to a file
KFP 1.x            two further results are documents for its UI: mlpipeline-metrics, mlpipeline-ui-metadata
KFP 2              --executor-input names a file for the metadata of artifacts
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from ddpipe.commands import print_result
from ddpipe.storage import write_uri

WRITE, EXECUTOR = "write", "executor_input"  # keys of the context's `meta`
V1_METRICS, V1_UI = "mlpipeline-metrics", "mlpipeline-ui-metadata"

View = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers to compare between runs."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page."""

    html: str


@dataclass(frozen=True, slots=True)
class Document:
    """A file of the run, with metadata for the engine."""

    content: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classification:
    """How well a model separates the classes, with the ROC curve point by point."""

    classes: Sequence[str]
    confusion_matrix: Sequence[Sequence[int]]  # by true class (row) and predicted class; may be empty
    false_positive_rate: Sequence[float]
    true_positive_rate: Sequence[float]
    threshold: Sequence[float]


Shown = Scores | Page | Document | Classification  # what an engine shows


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The results of a command."""

    facts: Mapping[str, object]  # what --json prints
    text: str  # what is printed otherwise
    result: str = ""  # one line for the end of an engine's log; empty for the text
    values: Mapping[str, str | float] = field(default_factory=dict)
    shown: Mapping[str, Shown] = field(default_factory=dict)
    event_files: str = ""  # a folder for TensorBoard, which only KFP 1.x shows


def deliver(outcome: CommandOutcome) -> None:
    """Write and print the results."""
    meta = click.get_current_context().meta
    for name, path in meta.get(WRITE, ()):
        write_uri(str(path), _content(outcome, name))
    if meta.get(EXECUTOR):
        target, content = metadata_of_v2(meta[EXECUTOR], outcome.shown)
        write_uri(target, content)
    print_result(outcome.facts, outcome.result or outcome.text if called_by_engine() else outcome.text)


def called_by_engine() -> bool:
    """Whether a pipeline engine runs this command: it reads results from files."""
    return bool(click.get_current_context().meta.get(WRITE))


def _content(outcome: CommandOutcome, name: str) -> bytes:
    if name == V1_METRICS:
        return metrics_of_v1(outcome.shown.values()).encode()
    if name == V1_UI:
        return views_of_v1(outcome.shown.values(), outcome.event_files).encode()
    match outcome.shown.get(name):
        case Document(content):
            return content
        case Page(html):
            return html.encode()
        case Classification() as shown:
            rows = [list(row) for row in shown.confusion_matrix]
            text = json.dumps({"classes": list(shown.classes), "confusion_matrix": rows})
        case Scores(values):  # UIs report an error if there is no file
            text = json.dumps(dict(values))
        case None:
            text = str(outcome.values[name])
    return text.encode()


def metrics_of_v1(shown: Iterable[Shown]) -> str:
    """Numbers for the UI's comparison of runs."""
    values = {name: value for one in shown if isinstance(one, Scores) for name, value in one.values.items()}
    named = [{"name": name, "numberValue": value, "format": "RAW"} for name, value in values.items()]
    return json.dumps({"metrics": named[:50]})  # KFP 1.x stores no more


def views_of_v1(shown: Iterable[Shown], event_files: str = "") -> str:
    """Pictures and pages, in this order, and TensorBoard last."""
    views = [view for one in shown for view in _views(one)]
    if "://" in event_files:  # the UI cannot reach a folder on a claim
        views.append({"type": "tensorboard", "source": event_files})
    return json.dumps({"version": 1, "outputs": views})


def _views(shown: Shown) -> Iterator[View]:
    match shown:
        case Page(html):
            yield {"type": "web-app", "storage": "inline", "source": html}
        case Classification():
            if shown.confusion_matrix:
                counts = [
                    (true, predicted, count)
                    for true, line in zip(shown.classes, shown.confusion_matrix, strict=True)
                    for predicted, count in zip(shown.classes, line, strict=True)
                ]
                columns = {"target": "CATEGORY", "predicted": "CATEGORY", "count": "NUMBER"}
                yield {**_csv("confusion_matrix", columns, counts), "labels": list(shown.classes)}
            points = zip(shown.false_positive_rate, shown.true_positive_rate, shown.threshold, strict=True)
            yield _csv("roc", dict.fromkeys(("fpr", "tpr", "thresholds"), "NUMBER"), points)


def _csv(kind: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> View:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    schema = [{"name": name, "type": type_} for name, type_ in columns.items()]
    return {"type": kind, "format": "csv", "storage": "inline", "source": text.getvalue(), "schema": schema}


def metadata_of_v2(executor_input: str, shown: Mapping[str, Shown]) -> tuple[str, bytes]:
    """The path and the content of the executor's output file."""
    outputs = json.loads(executor_input)["outputs"]
    artifacts = {
        name: {"artifacts": [{**listed["artifacts"][0], "metadata": _metadata(shown[name])}]}
        for name, listed in outputs.get("artifacts", {}).items()
        if name in shown  # not the engine's own, such as executor-logs
    }
    return outputs["outputFile"], json.dumps({"artifacts": artifacts}).encode()


def _metadata(shown: Shown) -> dict[str, Any]:
    match shown:
        case Scores(values):
            return dict(values)
        case Document(_, metadata):
            return dict(metadata)
        case Classification():
            points = zip(shown.threshold, shown.true_positive_rate, shown.false_positive_rate, strict=True)
            names = ("confidenceThreshold", "recall", "falsePositiveRate")
            roc = {"confidenceMetrics": [dict(zip(names, point, strict=True)) for point in points]}
            if not shown.confusion_matrix:
                return roc
            matrix = {
                "annotationSpecs": [{"displayName": name} for name in shown.classes],
                "rows": [{"row": list(row)} for row in shown.confusion_matrix],
            }
            return {**roc, "confusionMatrix": matrix}
    return {}
