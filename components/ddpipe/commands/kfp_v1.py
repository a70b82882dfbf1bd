"""The two JSON documents from which the UI of KFP 1.x shows the results of a step. Pure functions.

All content is inline, so the UI needs no credentials, except for TensorBoard's event files.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddpipe.commands.shown import Classification, EventFiles, Page, Scores, Shown

MOST_METRICS = 50
"""The engine ignores the rest."""

View = Mapping[str, Any]


def metrics(shown: Iterable[Shown]) -> str:
    """Numbers for the UI's comparison of runs."""
    values = {name: value for one in shown if isinstance(one, Scores) for name, value in one.values.items()}
    named = [{"name": name, "numberValue": value, "format": "RAW"} for name, value in values.items()]
    return json.dumps({"metrics": named[:MOST_METRICS]})


def views(shown: Iterable[Shown]) -> str:
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
                yield _confusion_matrix(shown.classes, shown.confusion_matrix)
            yield _roc(shown)


def _confusion_matrix(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> View:
    rows = [
        (true, predicted, count)
        for true, line in zip(classes, counts, strict=True)
        for predicted, count in zip(classes, line, strict=True)
    ]
    columns = (("target", "CATEGORY"), ("predicted", "CATEGORY"), ("count", "NUMBER"))
    return {**_csv("confusion_matrix", rows), "schema": _schema(columns), "labels": list(classes)}


def _roc(shown: Classification) -> View:
    columns = (("fpr", "NUMBER"), ("tpr", "NUMBER"), ("thresholds", "NUMBER"))
    rows = zip(shown.false_positive_rate, shown.true_positive_rate, shown.threshold, strict=True)
    return {**_csv("roc", rows), "schema": _schema(columns)}


def _csv(kind: str, rows: Iterable[Sequence[object]]) -> View:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return {"type": kind, "format": "csv", "storage": "inline", "source": text.getvalue()}


def _schema(columns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in columns]
