"""From a name to a network, and from a network to a classifier of stored images.

A new architecture is a function here, a line in `_BUILDERS`, and its name in `ddpipe.model.ARCHITECTURES`.
Normalise without batch statistics (GroupNorm): the model is then the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ddpipe.errors import ParameterError
from ddpipe.model import ARCHITECTURES

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""


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
        pixels = images.permute(0, 3, 1, 2).float() / 255
        logits: Tensor = self.network((pixels - self.mean) / self.std)
        return logits


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network called `name`, with fresh weights from torch's random numbers.

    Args:
        name: One of `ddpipe.model.ARCHITECTURES`.
        shape: Of the images.
        classes: How many logits it gives.

    Raises:
        ParameterError: There is no such network, or the images are too small for it.
    """
    if name not in _BUILDERS:
        raise ParameterError(
            what="a network can not be built",
            which=f"model {name!r}",
            seen="there is no network of this name",
            do=f"Choose one of: {', '.join(ARCHITECTURES)}.",
        )
    return _BUILDERS[name](shape, classes)


def _digits_cnn(shape: Shape, classes: int) -> nn.Module:
    height, width, channels = shape
    smallest = 4
    if min(height, width) < smallest:
        raise ParameterError(
            what="a network can not be built",
            which="model 'digits-cnn'",
            seen=f"the images are {height}x{width} pixels, it halves them twice",
            do=f"Prepare the dataset with images of at least {smallest}x{smallest} pixels.",
        )
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
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {"digits-cnn": _digits_cnn}
