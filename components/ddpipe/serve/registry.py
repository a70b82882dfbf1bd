"""Registers a version of a model in a Kubeflow Model Registry, through the registry's own client.

Registering again changes nothing but what differs: a model, version or artifact that is there is updated, and
properties that others added stay.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import ClientError
from model_registry.core import ModelRegistryAPIClient
from model_registry.types import ArtifactState, ModelArtifact, ModelVersion, RegisteredModel
from mr_openapi import Configuration
from mr_openapi.exceptions import ApiException
from pydantic import ValidationError

from ddpipe.errors import CorruptObject, NotRegistered, ParameterError
from ddpipe.model.history import ORIGIN, version_at
from ddpipe.model.package import FORMAT, ONNX, load_package
from ddpipe.storage import open_store

Property: TypeAlias = "bool | int | float | str"

LONGEST = 1000  # characters of a text: a registry's columns are bounded
AUTHOR = "ddpipe"

# As the registry's client names the file with a token; sent over https only.
TOKEN = "KF_PIPELINES_SA_TOKEN_PATH"  # noqa: S105 - a variable with the path of a file
# Seconds before each further attempt: of a registry that is away, or of two registrations at once.
PAUSES = (1.0, 4.0, 10.0)
LIMIT = 60.0  # seconds that an attempt may take
_BUSY = 500
# Of two registrations at once, the later one creates what exists by then, and finds it the next time.
_CONFLICT = {400, 409}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """One version, as a registry records it, and the folder and name of the run that made it."""

    model: str
    version: str
    uri: str
    description: str
    format: str
    format_version: str
    properties: Mapping[str, Property]
    runs: str = ""
    run: str = ""


def entry_of(uri: str) -> RegistryEntry:
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
        "promotions": sum(one.version == version for one in model.history().promotions),
        "framework": "pytorch",
        "sha256": str(origin.get("package", "")),
        "model_id": package.model_id,
        **_lineage(package.lineage),
        "run_folder": str(origin.get("run", "")),
    }
    folder, _, run = str(origin.get("run", "")).rpartition("/")
    return RegistryEntry(
        model=model.name,
        version=version,
        uri=uri,
        description=str(origin.get("reason", ""))[:LONGEST],
        format="onnx" if ONNX in package.folder.sha256 else "safetensors",
        format_version=str(FORMAT.schema),
        properties={
            name: value if isinstance(value, (bool, int, float)) else str(value)[:LONGEST]
            for name, value in properties.items()
            if value not in {"", None}
        },
        runs=folder[:LONGEST],
        run=run[:LONGEST],
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
        "ddpipe": made_by.get("versions", {}).get("ddpipe"),
        "torch": made_by.get("versions", {}).get("torch"),
    }


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered version, and the registry's own IDs of it."""

    model: str
    version: str
    uri: str
    registry: str
    model_id: str
    version_id: str
    artifact_id: str


def register(
    entry: RegistryEntry,
    registry: str,
    environment: Mapping[str, str] = os.environ,
    pause: Callable[[float], object] = time.sleep,
) -> Registered:
    """Register a version."""
    client = ModelRegistryAPIClient(_configuration(registry, environment))
    for seconds in (*PAUSES, None):
        try:
            return asyncio.run(asyncio.wait_for(_registered(client, entry, registry), LIMIT))
        except (ApiException, ClientError, TimeoutError, OSError, ValidationError, ValueError) as error:
            may_pass = isinstance(error, (ClientError, TimeoutError, OSError))
            if isinstance(error, ApiException):
                may_pass = error.status in _CONFLICT or (error.status or 0) >= _BUSY
            if seconds is None or not may_pass:
                raise _failed(entry, registry, error) from error
            pause(seconds)
    raise AssertionError  # the last attempt returns or raises


async def _registered(client: ModelRegistryAPIClient, entry: RegistryEntry, registry: str) -> Registered:
    # What is there is updated: an attempt before may have ended between two of these.
    model = await client.get_registered_model_by_params(entry.model)
    if model is None:
        model = await client.upsert_registered_model(RegisteredModel(name=entry.model, owner=AUTHOR))
    version = await client.get_model_version_by_params(model.id, entry.version)
    wanted = version or ModelVersion(name=entry.version, author=AUTHOR)
    changes = {
        "description": entry.description,
        "custom_properties": {**(wanted.custom_properties or {}), **entry.properties},
    }
    version = await client.upsert_model_version(wanted.model_copy(update=changes), model.id)
    artifact = await client.get_model_artifact_by_params(entry.model, version.id)
    wanted = artifact or ModelArtifact(name=entry.model)
    changes = {
        "uri": entry.uri,
        "state": ArtifactState.LIVE,
        "model_format_name": entry.format,
        "model_format_version": entry.format_version,
        "model_source_kind": "kfp",
        "model_source_class": "pipelinerun",
        "model_source_group": entry.runs,
        "model_source_id": entry.run,
        "model_source_name": entry.run,
    }
    artifact = await client.upsert_model_version_artifact(wanted.model_copy(update=changes), version.id)
    return Registered(
        entry.model, entry.version, entry.uri, registry, str(model.id), str(version.id), str(artifact.id)
    )


def _configuration(registry: str, environment: Mapping[str, str]) -> Configuration:
    """The server, and a token where it travels encrypted; certificates are verified."""
    path = environment.get(TOKEN) if registry.startswith("https://") else None
    try:
        token = Path(path).read_text().strip() if path else None
    except (OSError, ValueError) as error:
        raise ParameterError(
            what="the model cannot be registered",
            which=f"{TOKEN}={path}",
            seen=f"the token cannot be read: {error}",
            do=f"Correct {TOKEN}, or unset it for a registry without a login.",
        ) from error
    return Configuration(host=registry.rstrip("/"), access_token=token)


def _failed(entry: RegistryEntry, registry: str, error: Exception) -> NotRegistered:
    if isinstance(error, ApiException):
        seen = f"it answers {error.status} {error.reason}: {(error.body or '')[:500]}".rstrip(": ")
    elif isinstance(error, TimeoutError):
        seen = f"no answer within {LIMIT:g} s"
    elif isinstance(error, (ClientError, OSError)):
        seen = f"it does not answer: {error}"
    else:
        seen = f"its answer is not a model registry's: {str(error)[:500]}"
    return NotRegistered(
        what="a version was not registered",
        which=f"{entry.model}@{entry.version} in {registry}",
        seen=seen,
        do="The model itself stands, and nothing has to be trained again. When the registry answers: "
        f"ddpipe models register {entry.uri} --registry {registry}",
    )
