"""metadata.yaml of a component, as kubeflow/pipelines-components, the official catalogue, requires it.

Keys, their order and the formats of versions and times pass the catalogue's own checks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import yaml

from ddpipe.steps import (
    CLEAN_UP,
    DEPLOY,
    EVALUATE,
    EXPORT,
    GATE,
    PREDICT,
    PREPARE,
    PYTORCH_JOB,
    REGISTER,
    TRAIN,
    TUNE,
    Step,
)

VERIFIED = datetime(2026, 11, 22, tzinfo=UTC)
"""When the training pipeline last ran on a real KFP 2.17."""

STABILITY = "alpha"
LEAST_PIPELINES = "2.15.2"
"""The oldest Kubeflow Pipelines that accepts the packages."""

_PIPELINES = {"name": "Pipelines", "version": f">={LEAST_PIPELINES}"}
_TRAINER = {"name": "Trainer", "version": ">=1.8.1"}
_TAGS = {
    PREPARE.name: ("data_processing", "dataset_preparation", "images"),
    TRAIN.name: ("training", "pytorch", "distributed", "ddp"),
    TUNE.name: ("training", "hyperparameter_tuning", "katib"),
    EVALUATE.name: ("evaluation", "metrics", "images"),
    GATE.name: ("evaluation", "model_comparison", "promotion"),
    EXPORT.name: ("deployment", "onnx", "model_package"),
    PREDICT.name: ("inference", "batch", "drift"),
    DEPLOY.name: ("deployment", "kserve", "serving"),
    REGISTER.name: ("deployment", "model_registry", "lineage"),
    PYTORCH_JOB.name: ("training", "pytorch", "distributed", "launcher"),
    CLEAN_UP.name: ("training", "pytorch", "cleanup"),
}


def metadata(step: Step) -> str:
    """The content of metadata.yaml."""
    needs_trainer = step in {TRAIN, TUNE, PYTORCH_JOB, CLEAN_UP}
    facts: dict[str, Any] = {
        "name": step.name,
        "stability": STABILITY,
        "dependencies": {"kubeflow": [_PIPELINES, *([_TRAINER] if needs_trainer else [])]},
        "lastVerified": VERIFIED,
        "tags": list(_TAGS[step.name]),
    }
    text: str = yaml.safe_dump(facts, sort_keys=False, explicit_start=True)
    return text
