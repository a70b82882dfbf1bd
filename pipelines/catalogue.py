"""metadata.yaml of a component, as kubeflow/pipelines-components, the official catalogue, requires it.

Keys, their order and the formats of versions and times pass the catalogue's own checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from ddpipe import steps

VERIFIED = datetime(2026, 11, 22, tzinfo=UTC)
"""When the training pipeline last ran on a real KFP 2.17."""

STABILITY = "alpha"
LEAST_PIPELINES = "2.15.2"
"""The oldest Kubeflow Pipelines that accepts the packages."""

_PIPELINES = {"name": "Pipelines", "version": f">={LEAST_PIPELINES}"}
_TRAINER = {"name": "Trainer", "version": ">=1.8.1"}
TAGS: Mapping[steps.Step, tuple[str, ...]] = {
    steps.PREPARE: ("data_processing", "dataset_preparation", "images"),
    steps.TUNE: ("training", "hyperparameter_tuning", "katib"),
    steps.TRAIN: ("training", "pytorch", "distributed", "ddp"),
    steps.EVALUATE: ("evaluation", "metrics", "images"),
    steps.GATE: ("evaluation", "model_comparison", "promotion"),
    steps.EXPORT: ("deployment", "onnx", "model_package"),
    steps.PREDICT: ("inference", "batch"),
    steps.DEPLOY: ("deployment", "kserve", "serving"),
    steps.REGISTER: ("deployment", "model_registry", "lineage"),
    steps.PYTORCH_JOB: ("training", "pytorch", "distributed", "launcher"),
    steps.CLEAN_UP: ("training", "pytorch", "cleanup"),
}
"""The steps with a component file, for your own pipelines, and what the catalogue lists them under."""


def metadata(step: steps.Step) -> str:
    """The content of metadata.yaml."""
    needs_trainer = step in {steps.TRAIN, steps.TUNE, steps.PYTORCH_JOB, steps.CLEAN_UP}
    facts: dict[str, Any] = {
        "name": step.name,
        "stability": STABILITY,
        "dependencies": {"kubeflow": [_PIPELINES, *([_TRAINER] if needs_trainer else [])]},
        "lastVerified": VERIFIED,
        "tags": list(TAGS[step]),
    }
    text: str = yaml.safe_dump(facts, sort_keys=False, explicit_start=True)
    return text
