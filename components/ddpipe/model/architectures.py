"""From a name to a network, and from a network to a classifier of stored images.

A new architecture is a function here, a line in `_BUILDERS`, and its name in `ddpipe.model.ARCHITECTURES`.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ddpipe.errors import ParameterError
from ddpipe.model import is_own_function
from ddpipe.model.fast_cnn import SMALLEST as FAST_CNN_SMALLEST
from ddpipe.model.fast_cnn import FastCNN

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""


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
    if name in _BUILDERS:
        return _BUILDERS[name](shape, classes)
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
        raise _cannot_build(
            name,
            f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})",
            "Correct the function, or put its package where Python finds it (PYTHONPATH).",
        ) from error
    if not isinstance(network, nn.Module):
        raise _cannot_build(
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
        raise _cannot_build(
            name,
            f"it does not take images of {height}x{width} pixels and {channels} channels: {error}",
            "Prepare the dataset with images that it takes, or choose another model.",
        ) from error
    network.train(training)
    expected = (2, classes)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        seen = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise _cannot_build(
            name, f"for 2 images it gives {seen}, not {expected}", "Let it give one logit for each class."
        )


def _cannot_build(name: str, seen: str, do: str) -> ParameterError:
    return ParameterError(what="the network cannot be built", which=f"model {name!r}", seen=seen, do=do)


def _check_size(name: str, shape: Shape, smallest: int) -> None:
    height, width, _ = shape
    if min(height, width) < smallest:
        raise _cannot_build(
            name,
            f"the images are {height}x{width} pixels, it needs at least {smallest}x{smallest}",
            f"Prepare the dataset with images of at least {smallest}x{smallest} pixels.",
        )


def _digits_cnn(shape: Shape, classes: int) -> nn.Module:
    _check_size("digits-cnn", shape, 4)
    height, width, channels = shape
    features = 32
    return nn.Sequential(
        *_convolution(channels, features),
        *_convolution(features, features),
        nn.MaxPool2d(2),
        *_convolution(features, 2 * features),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * features * (height // 4) * (width // 4), classes),
    )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """A convolution normalised without batch statistics: the same for any number of processes."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()


def _lenet(shape: Shape, classes: int) -> nn.Module:
    """Source: LeCun et al., Proceedings of the IEEE 86(11), 1998; with ReLU and max pooling."""
    _check_size("lenet", shape, 12)
    height, width = ((side // 2 - 4) // 2 for side in shape[:2])
    return nn.Sequential(
        nn.Conv2d(shape[2], 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _simple_cnn(shape: Shape, classes: int) -> nn.Module:
    """The CNN of many a first tutorial: 2304 features before its linear layers for 32x32 pixels."""
    _check_size("simple-cnn", shape, 10)
    height, width = (((side - 2) // 2 - 2) // 2 for side in shape[:2])
    return nn.Sequential(
        nn.Conv2d(shape[2], 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * height * width, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _fast_cnn(name: str, widths: tuple[int, int, int]) -> Callable[[Shape, int], nn.Module]:
    def build_it(shape: Shape, classes: int) -> nn.Module:
        _check_size(name, shape, FAST_CNN_SMALLEST)
        return FastCNN(shape[2], classes, widths)

    return build_it


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "digits-cnn": _digits_cnn,
    "lenet": _lenet,
    "simple-cnn": _simple_cnn,
    "fast-cnn-small": _fast_cnn("fast-cnn-small", (48, 96, 96)),
    "fast-cnn": _fast_cnn("fast-cnn", (64, 256, 256)),
    "fast-cnn-large": _fast_cnn("fast-cnn-large", (128, 384, 384)),
}
