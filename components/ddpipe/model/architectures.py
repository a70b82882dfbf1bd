"""From a name to a network, and from a network to a classifier of stored images.

Our own networks are in `networks`, those of torchvision in `torchvision_models`.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ddpipe.model import ARCHITECTURES, is_own_function, networks
from ddpipe.model.networks import Shape, cannot_build


@runtime_checkable
class InitialisedFromImages(Protocol):
    """A network some of whose first weights are computed from images."""

    def initialise(self, images: Tensor) -> None:
        """Set them, from normalised images, shape (N, C, H, W)."""


class Classifier(nn.Module):
    """A network together with its preprocessing: trained, evaluated and exported as this one module.

    Attributes:
        network: From normalised float images, shape (N, C, H, W), to logits, shape (N, classes).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Keep `mean` and `std`, per channel, for pixels scaled to 0..1, with the weights."""
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        # A channel that never varies must not divide by zero: one grey level is the least deviation.
        self.register_buffer(
            "std", torch.tensor(std, dtype=torch.float32).clamp(min=1 / 255).view(1, -1, 1, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of uint8 images, shape (N, H, W, C); normalised on their device."""
        logits: Tensor = self.network(self._normalised(images))
        return logits

    def initialise(self, images: Tensor) -> None:
        """Let the network set its first weights from training images, if it is of that kind.

        Args:
            images: uint8, shape (N, H, W, C); the same on all processes.
        """
        if isinstance(self.network, InitialisedFromImages):
            self.network.initialise(self._normalised(images))

    def _normalised(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).float() / 255
        return (pixels - self.mean) / self.std


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network called `name`, with fresh weights from torch's random numbers.

    Args:
        name: One of `ddpipe.model.ARCHITECTURES`, a classification model of torchvision, or
            `package.module:function` for a function (shape, classes) -> nn.Module.
        shape: Of the images.
        classes: Number of logits.

    Raises:
        ParameterError: There is no such network, or it cannot take these images.
    """
    if name in ARCHITECTURES:
        own: nn.Module = getattr(networks, name.replace("-", "_"))(shape, classes)
        return own
    if is_own_function(name):
        network = _from_function(name, shape, classes)
    else:
        # Only what needs torchvision waits for its import.
        from ddpipe.model.torchvision_models import build_torchvision  # noqa: PLC0415

        network = build_torchvision(name, shape, classes)
    _check_logits(network, name, shape, classes)
    return network


def _from_function(name: str, shape: Shape, classes: int) -> nn.Module:
    """What a function of the user's own returns."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
        network = found(shape, classes)
    except Exception as error:  # somebody else's code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise cannot_build(
            name,
            f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})",
            "Correct the function, or put its package where Python finds it (PYTHONPATH).",
        ) from error
    if not isinstance(network, nn.Module):
        raise cannot_build(
            name,
            f"the function returned {type(network).__name__}, not a torch.nn.Module",
            "Let it return a network: function(shape, classes), shape being (height, width, channels).",
        )
    return network


@torch.no_grad()
def _check_logits(network: nn.Module, name: str, shape: Shape, classes: int) -> None:
    """Refuse a network of other origin that does not turn images of this shape into logits."""
    height, width, channels = shape
    training = network.training
    try:
        logits = network.eval()(torch.zeros(2, channels, height, width))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise cannot_build(
            name,
            f"it does not take images of {height}x{width} pixels and {channels} channels: {error}",
            "Prepare the dataset with images that it takes, or choose another model.",
        ) from error
    network.train(training)
    expected = (2, classes)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        seen = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise cannot_build(
            name, f"for 2 images it gives {seen}, not {expected}", "Let it give one logit for each class."
        )
