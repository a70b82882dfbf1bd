"""The model that a training starts from."""

from __future__ import annotations

from typing import Any

import torch

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.reader import SplitReader
from ddpipe.model import resolve
from ddpipe.model.architectures import Classifier, InitialisedFromImages, build
from ddpipe.model.pretrained import load_pretrained
from ddpipe.train.order import permutation
from ddpipe.train.recipe import Recipe
from ddpipe.train.warm_start import warm_weights

INITIAL_SAMPLES = 1024
"""Training images from which a network may set its first weights."""


def network_facts(recipe: Recipe, manifest: DatasetManifest) -> dict[str, Any]:
    """What rebuilds the network without its weights: the arguments of `architectures.build`."""
    return {
        "name": resolve(recipe.model, manifest.shape),
        "shape": manifest.shape,
        "classes": len(manifest.classes),
    }


def initial_classifier(
    recipe: Recipe, manifest: DatasetManifest, images: SplitReader, *, resumed: bool = False
) -> Classifier:
    """The classifier before its first step, on the CPU: the same for the same recipe and dataset.

    Args:
        recipe: With the network, the seed, and pretrained weights if there are any.
        manifest: Of the dataset version.
        images: The training split.
        resumed: Whether a checkpoint's weights will take the place of these: pretrained weights and images
            are not read then.

    Raises:
        ParameterError: There is no such network, or it does not suit images or pretrained weights.
        DatasetError: The images are damaged.
        StoreError: Something cannot be read.
    """
    torch.manual_seed(recipe.seed)
    network = build(**network_facts(recipe, manifest), trusted=recipe.model)
    classifier = Classifier(network, manifest.mean, manifest.std)
    if recipe.warm_start and not resumed:
        classifier.load_state_dict(warm_weights(recipe.warm_start, classifier, manifest))
    elif not resumed:
        if recipe.pretrained:
            facts = network_facts(recipe, manifest)
            load_pretrained(network, facts["name"], recipe.pretrained, facts["classes"])
        if isinstance(network, InitialisedFromImages):
            chosen = permutation(recipe.seed, 0, len(images))[:INITIAL_SAMPLES]
            classifier.initialise(torch.from_numpy(images.images(chosen)))
    return classifier
