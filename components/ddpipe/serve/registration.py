"""What a model registry records about a version of a model: pure facts, from the version's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ddpipe.errors import CorruptObject, ParameterError
from ddpipe.model.history import ORIGIN, NamedModel, version_at
from ddpipe.model.package import FORMAT, ONNX, load_package
from ddpipe.storage import open_store

Property: TypeAlias = "bool | int | float | str"

LONGEST = 1000
"""Characters of a text: a registry's columns are bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The run that made a version, in the registry's own terms.

    Attributes:
        kind: Of system, such as kfp.
        category: Of object in this system.
        group: Its namespace, or the folder of all runs.
        id: Of the run.
        name: Of the run, for people.
    """

    kind: str = "kfp"
    category: str = "pipelinerun"
    group: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version, as a registry records it.

    Attributes:
        model: Name of the model.
        version: Of this version, 12 hex digits.
        uri: Of the package.
        description: Why it was promoted, in a sentence.
        format: Of the model file: onnx, or safetensors.
        format_version: Of the package.
        properties: Scores, lineage and verdict by name.
        source: The run that made it.
    """

    model: str
    version: str
    uri: str
    description: str
    format: str
    format_version: str
    properties: Mapping[str, Property]
    source: Source = field(default_factory=Source)


def entry_of(uri: str) -> Entry:
    """What a registry records about the version at a URI."""
    found = version_at(uri)
    if not found:
        raise ParameterError(
            what="the model cannot be registered",
            which=uri,
            seen="it is no version of a model: <store>/models/<name>/versions/<version>",
            do="Give NAME@champion or NAME@VERSION; the gate makes versions, and so does "
            "`ddpipe models promote`.",
        )
    model, version = found
    package = load_package(uri)
    origin = _origin(uri)
    properties = {
        **{name: score.value for name, score in package.metrics.scores.items()},
        "test_samples": package.metrics.samples,
        "task": package.signature.task,
        "classes": len(package.signature.classes),
        "network": package.signature.architecture,
        "temperature": package.signature.temperature,
        "verdict": str(origin.get("decision", "")),
        "promotions": _promotions(model, version),
        "framework": "pytorch",
        "sha256": str(origin.get("package", "")),
        "model_id": package.model_id,
        **_lineage(package.lineage),
        "run_folder": str(origin.get("run", "")),
    }
    folder, _, run = str(origin.get("run", "")).rpartition("/")
    return Entry(
        model=model.name,
        version=version,
        uri=uri,
        description=str(origin.get("reason", ""))[:LONGEST],
        format="onnx" if ONNX in package.folder.sha256 else "safetensors",
        format_version=str(FORMAT.schema),
        properties={name: _bounded(value) for name, value in properties.items() if value not in {"", None}},
        source=Source(group=folder[:LONGEST], id=run[:LONGEST], name=run[:LONGEST]),
    )


def _origin(uri: str) -> Mapping[str, Any]:
    """What publishing wrote about where the version comes from."""
    try:
        found = json.loads(open_store(uri).read(ORIGIN))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CorruptObject(
            what="the model cannot be registered",
            which=f"{uri}/{ORIGIN}",
            seen="it is not a JSON object",
            do="Restore the file from a backup, or export the model again.",
        )
    return found


def _promotions(model: NamedModel, version: str) -> int:
    """How often the version became the champion."""
    return sum(one.version == version for one in model.history().promotions)


def _lineage(lineage: Mapping[str, Any]) -> dict[str, Property | None]:
    """What the model was made from, and with, as single values."""
    dataset, training = lineage.get("dataset", {}), lineage.get("training", {})
    made_by = lineage.get("made_by", {})
    return {
        "dataset_id": dataset.get("id"),
        "dataset_uri": dataset.get("uri"),
        "training_uri": training.get("uri"),
        "recipe": json.dumps(training["recipe"]) if "recipe" in training else None,
        "job": made_by.get("job"),
        "image": made_by.get("image"),
        "license": lineage.get("license"),
        "intended_use": lineage.get("intended_use"),
        "ddpipe": made_by.get("versions", {}).get("ddpipe"),
        "torch": made_by.get("versions", {}).get("torch"),
    }


def _bounded(value: Any) -> Property:  # noqa: ANN401 - of a file
    known: Property = value if isinstance(value, (bool, int, float)) else str(value)[:LONGEST]
    return known
