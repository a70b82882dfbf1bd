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
from typing import Any, Protocol

import click

from ddpipe.commands import print_result
from ddpipe.storage import write_uri

WRITE, EXECUTOR = "write", "executor_input"
"""Keys of the context's `meta`."""

V1_METRICS, V1_UI = "mlpipeline-metrics", "mlpipeline-ui-metadata"


MOST_METRICS = 50
"""KFP 1.x ignores the rest."""

View = Mapping[str, Any]


class Shown(Protocol):
    """Something that an engine shows."""

    @property
    def content(self) -> bytes:
        """Its file: UIs report an error if there is none."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers to compare between runs."""

    values: Mapping[str, float]

    @property
    def content(self) -> bytes:
        """As JSON."""
        return json.dumps(dict(self.values)).encode()


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page."""

    html: str

    @property
    def content(self) -> bytes:
        """The page itself."""
        return self.html.encode()


@dataclass(frozen=True, slots=True)
class Document:
    """A file of the run, with metadata for the engine."""

    content: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classification:
    """How well a model separates the classes, with the ROC curve point by point.

    Attributes:
        confusion_matrix: Counts by true class (row) and predicted class (column); may be empty.
    """

    classes: Sequence[str]
    confusion_matrix: Sequence[Sequence[int]]
    false_positive_rate: Sequence[float]
    true_positive_rate: Sequence[float]
    threshold: Sequence[float]

    @property
    def content(self) -> bytes:
        """As JSON."""
        rows = [list(row) for row in self.confusion_matrix]
        return json.dumps({"classes": list(self.classes), "confusion_matrix": rows}).encode()


@dataclass(frozen=True, slots=True)
class EventFiles:
    """A folder of TensorBoard's event files."""

    folder: str

    @property
    def content(self) -> bytes:
        """Its URI."""
        return self.folder.encode()


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The results of a command.

    Attributes:
        facts: What --json prints.
        text: What is printed otherwise.
        result: One line for the end of an engine's log; empty for the text.
        more: Further results that only KFP 1.x can show.
    """

    facts: Mapping[str, object]
    text: str
    result: str = ""
    values: Mapping[str, str | float] = field(default_factory=dict)
    shown: Mapping[str, Shown] = field(default_factory=dict)
    more: tuple[Shown, ...] = ()


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
    everything = (*outcome.shown.values(), *outcome.more)
    made: dict[str, Any] = {V1_METRICS: metrics_of_v1, V1_UI: views_of_v1}
    if name in made:
        return str(made[name](everything)).encode()
    if name in outcome.shown:
        return outcome.shown[name].content
    return str(outcome.values[name]).encode()


def metrics_of_v1(shown: Iterable[Shown]) -> str:
    """Numbers for the UI's comparison of runs."""
    values = {name: value for one in shown if isinstance(one, Scores) for name, value in one.values.items()}
    named = [{"name": name, "numberValue": value, "format": "RAW"} for name, value in values.items()]
    return json.dumps({"metrics": named[:MOST_METRICS]})


def views_of_v1(shown: Iterable[Shown]) -> str:
    """Pictures and pages, in this order."""
    return json.dumps({"version": 1, "outputs": [view for one in shown for view in _views(one)]})


def _views(shown: Shown) -> Iterator[View]:
    match shown:
        case Page(html):
            yield {"type": "web-app", "storage": "inline", "source": html}
        # The UI cannot reach a folder on a claim.
        case EventFiles(folder) if "://" in folder:
            yield {"type": "tensorboard", "source": folder}
        case Classification():
            if shown.confusion_matrix:
                yield _matrix_view(shown.classes, shown.confusion_matrix)
            yield _roc_view(shown)


def _matrix_view(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> View:
    rows = [
        (true, predicted, count)
        for true, line in zip(classes, counts, strict=True)
        for predicted, count in zip(classes, line, strict=True)
    ]
    columns = (("target", "CATEGORY"), ("predicted", "CATEGORY"), ("count", "NUMBER"))
    return {**_csv("confusion_matrix", rows), "schema": _schema(columns), "labels": list(classes)}


def _roc_view(shown: Classification) -> View:
    columns = (("fpr", "NUMBER"), ("tpr", "NUMBER"), ("thresholds", "NUMBER"))
    rows = zip(shown.false_positive_rate, shown.true_positive_rate, shown.threshold, strict=True)
    return {**_csv("roc", rows), "schema": _schema(columns)}


def _csv(kind: str, rows: Iterable[Sequence[object]]) -> View:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return {"type": kind, "format": "csv", "storage": "inline", "source": text.getvalue()}


def _schema(columns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in columns]


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
            return {"confidenceMetrics": _roc_metadata(shown), **_matrix_metadata(shown)}
    return {}


def _matrix_metadata(shown: Classification) -> dict[str, Any]:
    if not shown.confusion_matrix:
        return {}
    names = [{"displayName": name} for name in shown.classes]
    return {
        "confusionMatrix": {
            "annotationSpecs": names,
            "rows": [{"row": list(row)} for row in shown.confusion_matrix],
        }
    }


def _roc_metadata(shown: Classification) -> list[dict[str, float]]:
    points = zip(shown.threshold, shown.true_positive_rate, shown.false_positive_rate, strict=True)
    return [
        {"confidenceThreshold": threshold, "recall": recall, "falsePositiveRate": rate}
        for threshold, recall, rate in points
    ]
