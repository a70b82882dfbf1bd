"""Small model packages for tests."""

from __future__ import annotations

import torch
from evaluation_runs import some_logits
from safetensors.torch import save

from ddpipe.data.manifest import DatasetManifest
from ddpipe.evaluate.metrics import measure
from ddpipe.model.architectures import Classifier, build
from ddpipe.model.package import Signature, publish
from ddpipe.storage import open_store


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
