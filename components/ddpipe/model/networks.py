"""Our own networks: each a function of the images' shape and the number of classes.

A further one is a function here, and its name, with `-` for `_`, in `ddpipe.model.ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ddpipe.data.manifest import Shape
from ddpipe.errors import ParameterError
from ddpipe.model.fast_cnn import SMALLEST as FAST_CNN_SMALLEST
from ddpipe.model.fast_cnn import FastCNN


def cannot_build(name: str, seen: str, do: str) -> ParameterError:
    """The error of a network that cannot be built."""
    return ParameterError(what="the network cannot be built", which=f"model {name!r}", seen=seen, do=do)


def _check_size(name: str, shape: Shape, smallest: int) -> None:
    height, width, _ = shape
    if min(height, width) < smallest:
        raise cannot_build(
            name,
            f"the images are {height}x{width} pixels, it needs at least {smallest}x{smallest}",
            f"Prepare the dataset with images of at least {smallest}x{smallest} pixels.",
        )


def digits_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions: 0.98 on digits within seconds."""
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
    """A convolution normalized without batch statistics: the same for any number of processes."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()


def lenet(shape: Shape, classes: int) -> nn.Module:
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


def simple_cnn(shape: Shape, classes: int) -> nn.Module:
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


def _fast_cnn_of(name: str, widths: tuple[int, int, int]) -> Callable[[Shape, int], nn.Module]:
    def build_it(shape: Shape, classes: int) -> nn.Module:
        _check_size(name, shape, FAST_CNN_SMALLEST)
        return FastCNN(shape[2], classes, widths)

    return build_it


fast_cnn_small = _fast_cnn_of("fast-cnn-small", (48, 96, 96))
fast_cnn = _fast_cnn_of("fast-cnn", (64, 256, 256))
fast_cnn_large = _fast_cnn_of("fast-cnn-large", (128, 384, 384))
