"""A compiled package: its name, its parameters, and its version, named by the hash of the content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddpipe.engine.answers import PIPELINE, VERSION
from ddpipe.engine.client import Engine, quoted
from ddpipe.errors import EngineConflict, InputError
from ddpipe.parameters import OneOf, Parameter

_KINDS: dict[str, type] = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}
_DIGITS = 12
_PACKAGE = "Name a package that `ddpipe compile` wrote for KFP 2, such as ddpipe-training.yaml."
_VALUES = "Write one `name: value` on each line, as in YAML."
# The same safe one, in C where PyYAML has it: packages are long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled package; its version is the beginning of the SHA-256 of its content."""

    path: Path
    name: str
    help: str
    version: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class PipelineVersion:
    """A version of a pipeline on the server, named by its content, and whether it is new."""

    pipeline: str
    pipeline_id: str
    name: str
    id: str
    uploaded: bool


def read_package(path: Path) -> Package:
    """The package in a file."""
    try:
        content = path.read_bytes()
        spec = next(yaml.load_all(content, _LOADER), None)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unreadable("package", path, " ".join(str(error).split()), _PACKAGE) from error
    if not isinstance(spec, dict) or "pipelineInfo" not in spec:
        is_workflow = isinstance(spec, dict) and spec.get("kind") == "Workflow"
        seen = "it is an Argo workflow, for KFP 1.x" if is_workflow else "it holds no pipeline"
        raise _unreadable("package", path, seen, _PACKAGE)
    info, inputs = spec["pipelineInfo"], spec.get("root", {}).get("inputDefinitions", {})
    return Package(
        path=path,
        name=info["name"],
        help=info.get("description", ""),
        version=hashlib.sha256(content).hexdigest()[:_DIGITS],
        parameters=tuple(_parameter(name, item) for name, item in inputs.get("parameters", {}).items()),
    )


def read_values(path: Path) -> dict[str, Any]:
    """A YAML or JSON file of parameters: names and values."""
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unreadable("parameters", path, " ".join(str(error).split()), _VALUES) from error
    if not isinstance(values, dict):
        raise _unreadable("parameters", path, "it holds no names with values", _VALUES)
    return {str(name): value for name, value in values.items()}


def steps_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The tasks of a pipeline that run a container, as the server names them."""
    inner = spec.get("pipeline_spec", spec)
    components = inner.get("components", {})
    groups = [inner.get("root", {}), *components.values()]
    tasks = [item for group in groups for item in group.get("dag", {}).get("tasks", {}).items()]
    return tuple(
        name for name, task in tasks if "executorLabel" in components.get(task["componentRef"]["name"], {})
    )


def publish(engine: Engine, package: Package, pipeline: str = "") -> PipelineVersion:
    """Upload a package, unless the server has this content already."""
    # The hash of its content is the version's name, so the same content is always the same version; an upload
    # that died half-way is found and completed.
    name = pipeline or package.name
    pipeline_id = _pipeline(engine, name) or _create(engine, name, package.help)
    if found := _version(engine, pipeline_id, package.version):
        return PipelineVersion(name, pipeline_id, package.version, found, uploaded=False)
    try:
        made = engine.client.upload(package.path, VERSION, name=package.version, pipelineid=pipeline_id)
    except EngineConflict:
        # Another process has just uploaded the same content.
        if found := _version(engine, pipeline_id, package.version):
            return PipelineVersion(name, pipeline_id, package.version, found, uploaded=False)
        raise
    return PipelineVersion(name, pipeline_id, package.version, made.pipeline_version_id, uploaded=True)


def _create(engine: Engine, name: str, text: str) -> str:
    """A pipeline without versions: an upload would name its first version as the pipeline."""
    body = {"display_name": name, "description": text, "namespace": engine.namespace}
    try:
        made: str = engine.client.ask("POST", "pipelines", PIPELINE, body=body).pipeline_id
    except EngineConflict:
        if found := _pipeline(engine, name):
            return found
        raise
    return made


def _pipeline(engine: Engine, name: str) -> str | None:
    found = engine.client.find("pipelines", "pipelines", PIPELINE, name, namespace=engine.namespace)
    return found.pipeline_id if found else None


def _version(engine: Engine, pipeline_id: str, name: str) -> str | None:
    path = f"pipelines/{quoted(pipeline_id)}/versions"
    found = engine.client.find(path, "pipeline_versions", VERSION, name)
    return found.pipeline_version_id if found else None


def _parameter(name: str, item: Mapping[str, Any]) -> Parameter:
    kind = _KINDS.get(item.get("parameterType", ""), str)
    optional = item.get("isOptional") or "defaultValue" in item
    return Parameter(
        name=name,
        kind=kind,
        default=item.get("defaultValue", "") if optional else None,
        help=item.get("description", ""),
        allowed=OneOf(tuple(item["literals"])) if item.get("literals") else None,
    )


def _unreadable(what: str, path: Path, seen: str, do: str) -> InputError:
    return InputError(what=f"the {what} cannot be read", which=str(path), seen=seen, do=do)
