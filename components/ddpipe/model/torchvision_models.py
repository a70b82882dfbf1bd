"""Torchvision's classification models, fitted to the images: their channels, their size, their classes."""

from __future__ import annotations

import difflib
from typing import Any

import torchvision
from torch import nn
from torchvision.models import DenseNet, ResNet

from ddpipe.errors import ParameterError

SMALL = 64
"""Pixels up to which a network must not shrink the images before it has looked at them."""


def build_torchvision(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model called `name` with fresh weights.

    Args:
        name: As `torchvision.models.list_models` has it.
        shape: Height, width and channels of the images.
        classes: Number of logits.
    """
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0) if name else names
        raise ParameterError(
            what="the network cannot be built",
            which=f"model {name!r}",
            seen=f"torchvision {torchvision.__version__} has no classification model of this name",
            do=f"Choose another, such as {', '.join(near)}.",
        )
    height, width, channels = shape
    builder = torchvision.models.get_model_builder(name)
    try:
        network: nn.Module = builder(num_classes=classes, **_options(builder, height, width))
    except (ValueError, RuntimeError) as error:
        raise ParameterError(
            what="the network cannot be built",
            which=f"model {name!r}",
            seen=f"for images of {height}x{width} pixels torchvision reports: {error}",
            do="Prepare images of a size that it accepts, such as 224, or choose another model.",
        ) from error
    if min(height, width) <= SMALL:
        _keep_small_images(network)
    if channels != first_convolution(network)[1].in_channels:
        _take_channels(network, channels)
    return network


def first_convolution(network: nn.Module) -> tuple[str, nn.Conv2d]:
    """The convolution that sees the images, and its name."""
    return next((name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d))


def _options(builder: Any, height: int, width: int) -> dict[str, Any]:  # noqa: ANN401 - any of torchvision's
    """Arguments that particular models need."""
    # Initialized as every other model: their own initialization takes half a minute.
    options: dict[str, Any] = {"weights": None}
    if builder.__name__ in {"googlenet", "inception_v3"}:
        # Auxiliary outputs, which normalization has made unnecessary.
        options |= {"aux_logits": False, "init_weights": False}
    if builder.__name__.startswith("vit_") and height == width:
        options["image_size"] = height
    if builder.__name__.startswith("maxvit_"):
        options["input_size"] = (height, width)
    return options


def _keep_small_images(network: nn.Module) -> None:
    """Look at every pixel first, where photographs are shrunk to a half or a quarter.

    Models that cut the image into patches stay as they are. Source: He et al., CVPR 2016, section 4.2.
    """
    name, stem = first_convolution(network)
    if stem.kernel_size[0] > stem.stride[0] > 1:
        size = 3 if isinstance(network, (ResNet, DenseNet)) else stem.kernel_size[0]
        network.set_submodule(name, _like(stem, stem.in_channels, size=size, stride=1))
    if isinstance(network, ResNet):
        network.maxpool = nn.Identity()
    if isinstance(network, DenseNet):
        network.features.pool0 = nn.Identity()


def _take_channels(network: nn.Module, channels: int) -> None:
    name, stem = first_convolution(network)
    network.set_submodule(name, _like(stem, channels, size=stem.kernel_size[0], stride=stem.stride[0]))


def _like(convolution: nn.Conv2d, channels: int, *, size: int, stride: int) -> nn.Conv2d:
    """A convolution with fresh weights like another, for other inputs."""
    padding = convolution.padding if size == convolution.kernel_size[0] else size // 2
    return nn.Conv2d(
        channels,
        convolution.out_channels,
        size,
        stride=stride,
        padding=padding,  # type: ignore[arg-type]  # wider than what it accepts again
        bias=convolution.bias is not None,
    )
