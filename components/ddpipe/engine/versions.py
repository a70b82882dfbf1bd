"""Packages on the server: one pipeline for each name, one version for each content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfp_server_api import V2beta1Pipeline

from ddpipe.engine.client import Engine, every, named, silent
from ddpipe.engine.package import Package
from ddpipe.errors import EngineConflict


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a pipeline on the server.

    Attributes:
        pipeline: Name of the pipeline.
        pipeline_id: The server's id of the pipeline.
        name: Hash of the content.
        id: The server's id of the version.
        uploaded: Whether it is new.
    """

    pipeline: str
    pipeline_id: str
    name: str
    id: str
    uploaded: bool


def publish(engine: Engine, package: Package, pipeline: str = "") -> Version:
    """Upload a package, unless the server has this content already.

    The hash of its content is the version's name, so the same content is always the same version; an upload
    that died half-way is found and completed.
    """
    name = pipeline or package.name
    pipeline_id = _pipeline(engine, name) or _create(engine, name, package.help)
    if found := _version(engine, pipeline_id, package.version):
        return Version(name, pipeline_id, package.version, found, uploaded=False)
    try:
        with silent():
            made = engine.client.upload_pipeline_version(
                str(package.path), pipeline_version_name=package.version, pipeline_id=pipeline_id
            )
    except EngineConflict:
        # Another process has just uploaded the same content.
        if found := _version(engine, pipeline_id, package.version):
            return Version(name, pipeline_id, package.version, found, uploaded=False)
        raise
    return Version(name, pipeline_id, package.version, made.pipeline_version_id, uploaded=True)


def _create(engine: Engine, name: str, text: str) -> str:
    """A pipeline without versions: an upload would name its first version as the pipeline."""
    body = V2beta1Pipeline(display_name=name, description=text, namespace=engine.namespace)
    try:
        made: str = engine.client.pipelines.pipeline_service_create_pipeline(pipeline=body).pipeline_id
    except EngineConflict:
        if found := _pipeline(engine, name):
            return found
        raise
    return made


def _pipeline(engine: Engine, name: str) -> str | None:
    listed = every(engine.client.list_pipelines, "pipelines", namespace=engine.namespace, filter=named(name))
    return next((item.pipeline_id for item in listed if item.display_name == name), None)


def _version(engine: Engine, pipeline_id: str, name: str) -> str | None:
    listed: Any = every(
        engine.client.list_pipeline_versions, "pipeline_versions", pipeline_id=pipeline_id, filter=named(name)
    )
    return next((item.pipeline_version_id for item in listed if item.display_name == name), None)
