"""What the UI of KFP 1.x shows of a step: two JSON documents that the step writes. Pure functions.

    metrics({"accuracy": 0.98}), views(confusion_matrix(names, counts), tensorboard("s3://bucket/run"))

Everything is inline: the UI needs no credentials of ours to show it, except for TensorBoard's event files.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_METRICS = 50
"""The engine ignores the rest."""

View = Mapping[str, Any]


def metrics(scores: Mapping[str, float]) -> str:
    """Numbers that the UI compares between runs."""
    named = [{"name": name, "numberValue": value, "format": "RAW"} for name, value in scores.items()]
    return json.dumps({"metrics": named[:MOST_METRICS]})


def views(*shown: View) -> str:
    """Pictures and pages, in this order."""
    return json.dumps({"version": 1, "outputs": shown})


def confusion_matrix(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> View:
    """Counts by true class (row of `counts`) and predicted class (column)."""
    rows = [
        (true, predicted, count)
        for true, line in zip(classes, counts, strict=True)
        for predicted, count in zip(classes, line, strict=True)
    ]
    columns = (("target", "CATEGORY"), ("predicted", "CATEGORY"), ("count", "NUMBER"))
    return {**_csv("confusion_matrix", rows), "schema": _schema(columns), "labels": list(classes)}


def roc(false_positive: Iterable[float], true_positive: Iterable[float], threshold: Iterable[float]) -> View:
    """An ROC curve."""
    columns = (("fpr", "NUMBER"), ("tpr", "NUMBER"), ("thresholds", "NUMBER"))
    rows = zip(false_positive, true_positive, threshold, strict=True)
    return {**_csv("roc", rows), "schema": _schema(columns)}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> View:
    """A table."""
    return {**_csv("table", rows), "header": list(header)}


def page(html: str) -> View:
    """A self-contained page."""
    return {"type": "web-app", "storage": "inline", "source": html}


def tensorboard(folder: str) -> View:
    """A button that starts TensorBoard on a folder of event files."""
    return {"type": "tensorboard", "source": folder}


def _csv(kind: str, rows: Iterable[Sequence[object]]) -> View:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return {"type": kind, "format": "csv", "storage": "inline", "source": text.getvalue()}


def _schema(columns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in columns]
