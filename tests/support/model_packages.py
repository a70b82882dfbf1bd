"""Small model packages for tests."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from evaluation_runs import some_logits
from safetensors.torch import save

from ddpipe.data.manifest import DatasetManifest
from ddpipe.evaluate.measure import measure
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.package import Signature, publish
from ddpipe.storage import open_store
from ddpipe.storage.sealed import sha256


def a_classifier(manifest: DatasetManifest, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(build("digits-cnn", manifest.shape, len(manifest.classes)), manifest.mean, manifest.std)


def a_package(uri: str, manifest: DatasetManifest) -> str:
    """A package of a network made for this manifest."""
    labels = torch.arange(6).numpy() % len(manifest.classes)
    publish(
        open_store(uri),
        onnx=b"onnx",
        weights=save(a_classifier(manifest, seed=7).state_dict()),
        signature=Signature(architecture="digits-cnn", shape=manifest.shape, classes=manifest.classes),
        metrics=measure(some_logits(labels, len(manifest.classes)), labels, manifest.classes),
        lineage={"dataset": {"id": "d" * 64}},
        card="# Toys",
    )
    return uri


def resealed(folder: Path, seal: str, name: str, content: bytes) -> None:
    """Replace a file, and its hash in the seal, as anybody can who may write to the folder."""
    (folder / name).write_bytes(content)
    facts = json.loads((folder / seal).read_text())
    facts["sha256"][name] = sha256(content)
    (folder / seal).write_text(json.dumps(facts))
