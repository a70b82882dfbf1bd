"""What a training starts from: initial weights, and warm start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ddpipe.data.manifest import DatasetManifest, Shape
from ddpipe.data.reader import SplitReader
from ddpipe.data.shards import working_shape
from ddpipe.distributed import rank
from ddpipe.errors import ParameterError, first_line, listed
from ddpipe.model import is_own_function
from ddpipe.model.classifier import Classifier, InitializedFromImages, build, versioned
from ddpipe.model.evaluation import corrupt
from ddpipe.model.own import try_training
from ddpipe.model.package import FORMAT as PACKAGE
from ddpipe.model.package import WEIGHTS, ModelPackage, Signature, load_package
from ddpipe.model.torchvision_models import is_finite, load_pretrained
from ddpipe.train.batches import permutation, resized
from ddpipe.train.constants import INITIAL_SAMPLES
from ddpipe.train.fully_sharded import LargeInFiles, LargeOnMeta
from ddpipe.train.recipe import Recipe

_log = logging.getLogger(__name__)

Weights = dict[str, Tensor]


def network_facts(recipe: Recipe, manifest: DatasetManifest) -> dict[str, Any]:
    """What rebuilds the network without its weights: the arguments of `classifier.build`."""
    return {
        "name": recipe.model,
        "shape": working_shape(manifest.shape, recipe.resolution),
        "classes": len(manifest.classes),
    }


def initial_classifier(
    recipe: Recipe,
    manifest: DatasetManifest,
    images: SplitReader,
    *,
    resumed: bool = False,
    sharded_for: int | None = None,
) -> Classifier:
    """The classifier before its first step, on the CPU: the same for the same recipe and dataset."""
    torch.manual_seed(recipe.seed)  # the same weights on all ranks, and in each attempt
    facts = network_facts(recipe, manifest)
    has_values = not sharded_for
    with nullcontext() if sharded_for is None else LargeOnMeta() if sharded_for else LargeInFiles():
        network = build(**facts, trusted=recipe.model, is_tried=has_values)
    classifier = Classifier(network, manifest.mean, manifest.std)
    if not has_values:
        return classifier
    if is_own_function(facts["name"]) and not resumed and sharded_for is None:
        # Not of a network that is to be sharded: its gradients would be whole.
        try_training(network, facts["name"], facts["shape"])
        if rank() == 0:
            _try_export(classifier, facts, manifest)
    if recipe.warm_start and not resumed:
        weights = warm_weights(recipe.warm_start, classifier, manifest, facts["shape"])
        classifier.load_state_dict(versioned(weights, classifier))
    elif not resumed:
        if recipe.has_pretrained:
            load_pretrained(network, facts["name"], recipe.pretrained, facts["classes"])
        if isinstance(network, InitializedFromImages):
            chosen = permutation(recipe.seed, 0, len(images))[:INITIAL_SAMPLES]
            classifier.initialize(torch.from_numpy(images.images(chosen)))
    return classifier


def _try_export(classifier: Classifier, facts: dict[str, Any], manifest: DatasetManifest) -> None:
    """Say before training what export would say after it: a network of the user's own may not be ONNX."""
    # The exporter takes a second to import, and only own functions need the trial.
    from ddpipe.model.onnx import NotExportable, to_onnx  # noqa: PLC0415

    signature = Signature(
        architecture=facts["name"], shape=facts["shape"], classes=manifest.classes, task=manifest.task
    )
    try:
        to_onnx(classifier.eval(), signature)
    except NotExportable as problem:
        _log.warning(
            "%s cannot be exported as ONNX (%s): the model package will hold safetensors only",
            facts["name"],
            problem,
        )
    finally:
        classifier.train()


def warm_weights(uri: str, classifier: Classifier, manifest: DatasetManifest, shape: Shape) -> Weights:
    """The weights of the package at `uri`, with the normalization of their own training, if they fit."""
    package = load_package(uri)
    try:
        weights = load(package.folder.read(WEIGHTS))
    except SafetensorError as error:
        raise corrupt(package.folder, WEIGHTS, first_line(error), PACKAGE) from error
    problems = [*_strangers(package, manifest, shape), *_mismatches(weights, classifier.state_dict())]
    problems += [f"{name}: NaN or infinite" for name, value in weights.items() if not is_finite(value)]
    if problems:
        raise ParameterError(
            what="training cannot start from these weights",
            which=uri,
            seen=listed(problems),
            do="Name a package of the same network and classes, or start from random weights.",
        )
    return weights


def _strangers(package: ModelPackage, manifest: DatasetManifest, shape: Shape) -> Iterator[str]:
    signature = package.signature
    facts = {
        "task": (signature.task, manifest.task),
        "shape of the images": (tuple(signature.shape), tuple(shape)),
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


@torch.no_grad()
def check_resolution(classifier: Classifier, shape: Shape, recipe: Recipe) -> None:
    """Reject smaller images for a network that accepts only one size, or only larger ones."""
    share = recipe.initial_resolution
    if share == 1:
        return
    smallest = resized(torch.zeros(1, *shape, dtype=torch.uint8), share)
    classifier.eval()
    try:
        classifier(smallest)
    except RuntimeError as error:
        raise ParameterError(
            what="training cannot start",
            which=f"model {recipe.model!r}",
            seen=f"with initial_resolution {share:g} it would get images of "
            f"{smallest.shape[2]}x{smallest.shape[1]} pixels, which it does not accept ({error})",
            do="Set initial_resolution to 1, or choose a model that accepts images of any size.",
        ) from error
    finally:
        classifier.train()
