"""Metadata of a step's artifacts, which KFP 2 reads from the executor's output file. Pure functions.

The engine passes the executor's input, a JSON document with the values of the step's inputs, the path of this
file and the output artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddpipe.commands.shown import Classification, Document, Scores, Shown
from ddpipe.steps import TASK_CONFIG


def task_config(executor_input: str) -> Mapping[str, Any]:
    """The settings of the step's task, if the component asks for them.

    They are not an argument of their own, as KFP 2.17.0 fills in arguments before it knows the settings.
    """
    inputs = json.loads(executor_input).get("inputs", {}).get("parameterValues", {})
    found: Mapping[str, Any] = inputs.get(TASK_CONFIG) or {}
    return found


def metadata(executor_input: str, shown: Mapping[str, Shown]) -> tuple[str, bytes]:
    """The path and the content of the executor's output file."""
    outputs = json.loads(executor_input)["outputs"]
    artifacts = {
        name: {"artifacts": [{**listed["artifacts"][0], "metadata": _of(shown[name])}]}
        for name, listed in outputs.get("artifacts", {}).items()
        if name in shown  # not the engine's own, such as executor-logs
    }
    return outputs["outputFile"], json.dumps({"artifacts": artifacts}).encode()


def _of(shown: Shown) -> dict[str, Any]:
    match shown:
        case Scores(values):
            return dict(values)
        case Document(_, metadata):
            return dict(metadata)
        case Classification():
            return {"confidenceMetrics": _roc(shown), **_confusion_matrix(shown)}
    return {}


def _confusion_matrix(shown: Classification) -> dict[str, Any]:
    if not shown.confusion_matrix:
        return {}
    names = [{"displayName": name} for name in shown.classes]
    return {
        "confusionMatrix": {
            "annotationSpecs": names,
            "rows": [{"row": list(row)} for row in shown.confusion_matrix],
        }
    }


def _roc(shown: Classification) -> list[dict[str, float]]:
    points = zip(shown.threshold, shown.true_positive_rate, shown.false_positive_rate, strict=True)
    return [
        {"confidenceThreshold": threshold, "recall": recall, "falsePositiveRate": rate}
        for threshold, recall, rate in points
    ]
