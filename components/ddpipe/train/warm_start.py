"""Weights of an earlier model package as the start of a training, once it is sure that they fit."""

from __future__ import annotations

from collections.abc import Iterator

from safetensors.torch import load
from torch import Tensor

from ddpipe.data.manifest import DatasetManifest
from ddpipe.errors import ParameterError, listed
from ddpipe.model.architectures import Classifier
from ddpipe.model.package import WEIGHTS, ModelPackage, load_package

Weights = dict[str, Tensor]


def warm_weights(uri: str, classifier: Classifier, manifest: DatasetManifest) -> Weights:
    """The weights of the package at `uri`, with the normalisation of their own training.

    Args:
        uri: Of a model package.
        classifier: That is to take them up.
        manifest: What it is going to be trained on.

    Raises:
        ParameterError: They do not fit the network or the dataset; every mismatch is named.
        StoreError: There is no package, or it is damaged.
    """
    package = load_package(uri)
    weights = load(package.folder.read(WEIGHTS))
    problems = [*_strangers(package, manifest), *_mismatches(weights, classifier.state_dict())]
    if problems:
        raise ParameterError(
            what="training cannot start from these weights",
            which=uri,
            seen=listed(problems),
            do="Name a package of the same network and classes, or start from fresh weights.",
        )
    return weights


def _strangers(package: ModelPackage, manifest: DatasetManifest) -> Iterator[str]:
    signature = package.signature
    facts = {
        "task": (signature.task, manifest.task),
        "shape of the images": (tuple(signature.shape), tuple(manifest.shape)),
        "classes": (list(signature.classes), list(manifest.classes)),
    }
    for name, (theirs, ours) in facts.items():
        if theirs != ours:
            yield f"{name}: {theirs} in the package, {ours} in the dataset"


def _mismatches(theirs: Weights, ours: Weights) -> Iterator[str]:
    for name in sorted({*theirs, *ours}):
        if name not in theirs:
            yield f"{name}: not in the package"
        elif name not in ours:
            yield f"{name}: not in the network"
        elif theirs[name].shape != ours[name].shape:
            shapes = tuple(theirs[name].shape), tuple(ours[name].shape)
            yield f"{name}: shape {shapes[0]} in the package, {shapes[1]} in the network"
