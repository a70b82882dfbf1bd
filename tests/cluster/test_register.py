"""Registering in a real Kubeflow Model Registry, whose address MODEL_REGISTRY names."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from model_registry import ModelRegistry
from onnx_packages import a_small_package

from ddpipe.model.history import NamedModel
from ddpipe.serve.registry import entry_of, register
from ddpipe.storage import open_store

pytestmark = pytest.mark.cluster


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_registry_has_the_version_once_with_its_scores_and_run(tmp_path: Path) -> None:
    """As the registry's own high-level client sees it."""
    if "MODEL_REGISTRY" not in os.environ:
        pytest.skip("no registry: set MODEL_REGISTRY to the URL of a Kubeflow Model Registry")
    url, name = os.environ["MODEL_REGISTRY"].rstrip("/"), f"toys-{uuid.uuid4().hex[:8]}"
    model = NamedModel(open_store(str(tmp_path / "store")), name)
    origin = {"run": "s3://bucket/runs/night-7", "decision": "promote", "reason": "it is better"}
    version = model.publish(a_small_package(str(tmp_path / "package")), origin)
    entry = entry_of(version.uri)
    assert register(entry, url) == register(entry, url)
    host, _, port = url.rpartition(":")
    client = ModelRegistry(host, int(port), author="test", is_secure=False)
    (found,) = client.get_model_versions(name)
    artifact = client.get_model_artifact(name, version.version)
    assert found.custom_properties == entry.properties
    assert found.description == "it is better"
    assert (artifact.uri, artifact.model_format_name) == (version.uri, "onnx")
    assert artifact.model_source_id == "night-7"
