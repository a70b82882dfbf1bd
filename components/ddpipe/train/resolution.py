"""Progressive resizing: early steps see smaller images, which cost less.

Source: Howard, "Training ImageNet in 3 hours for USD 25", fast.ai, 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from ddpipe.errors import ParameterError
from ddpipe.model.architectures import Classifier
from ddpipe.model.networks import Shape
from ddpipe.train.recipe import Recipe

MULTIPLE = 4
"""Pixels that the sides of smaller images are a multiple of."""


def resolution(recipe: Recipe, step: int, steps: int) -> float:
    """The share of the images' sides that the network sees in a step, counted from 0."""
    return recipe.initial_resolution if step < recipe.full_resolution_from * steps else 1.0


def resized(images: Tensor, share: float) -> Tensor:
    """Images, shape (n, H, W, C), with this share of their sides."""
    if share == 1:
        return images
    sides = [max(MULTIPLE, round(side * share / MULTIPLE) * MULTIPLE) for side in images.shape[1:3]]
    smaller: Tensor = resize(images.permute(0, 3, 1, 2), sides, antialias=True)
    return smaller.permute(0, 2, 3, 1)


@torch.no_grad()
def check_resolution(classifier: Classifier, shape: Shape, recipe: Recipe, device: torch.device) -> None:
    """Refuse smaller images for a network that takes one size only, or not so small ones.

    Raises:
        ParameterError: It does not take them.
    """
    if recipe.initial_resolution == 1:
        return
    smallest = resized(torch.zeros(1, *shape, dtype=torch.uint8, device=device), recipe.initial_resolution)
    classifier.eval()
    try:
        classifier(smallest)
    except RuntimeError as error:
        raise ParameterError(
            what="training cannot start",
            which=f"model {recipe.model!r}",
            seen=f"with initial_resolution {recipe.initial_resolution:g} it would get images of "
            f"{smallest.shape[1]}x{smallest.shape[2]} pixels, which it does not take ({error})",
            do="Set initial_resolution to 1, or choose a model that takes images of any size.",
        ) from error
    finally:
        classifier.train()
