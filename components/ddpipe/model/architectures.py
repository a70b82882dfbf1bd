"""From a name to a network, and from a network to a classifier of stored images.

Our own networks are in `networks`, those of torchvision in `torchvision_models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ddpipe.data.manifest import Shape
from ddpipe.model import ARCHITECTURES, is_own_function, networks
from ddpipe.model.own import build_own, cannot_build, check_logits


@runtime_checkable
class InitializedFromImages(Protocol):
    """A network some of whose first weights are computed from images."""

    def initialize(self, images: Tensor) -> None:
        """Set them, from normalized images, shape (N, C, H, W)."""


class Classifier(nn.Module):
    """A network together with its preprocessing: trained, evaluated and exported as this one module.

    Attributes:
        network: From normalized float images, shape (N, C, H, W), to logits, shape (N, classes).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Keep `mean` and `std`, per channel, for pixels scaled to 0..1, with the weights."""
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        # A channel that never varies must not divide by zero: one gray level is the least deviation.
        self.register_buffer(
            "std", torch.tensor(std, dtype=torch.float32).clamp(min=1 / 255).view(1, -1, 1, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of uint8 images, shape (N, H, W, C); normalized on their device."""
        logits: Tensor = self.network(self._normalized(images))
        return logits

    def initialize(self, images: Tensor) -> None:
        """Let the network set its first weights from training images, if it is of that kind.

        Args:
            images: uint8, shape (N, H, W, C); the same on all processes.
        """
        if isinstance(self.network, InitializedFromImages):
            self.network.initialize(self._normalized(images))

    def _normalized(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).float() / 255
        return (pixels - self.mean) / self.std


def build(name: str, shape: Shape, classes: int, *, trusted: str = "", is_tried: bool = True) -> nn.Module:
    """The network called `name`, with fresh weights from torch's random numbers.

    Args:
        name: One of `ddpipe.model.ARCHITECTURES`, a classification model of torchvision, or
            `package.module:function` for a function (shape, classes) -> nn.Module.
        shape: Of the images.
        classes: Number of logits.
        trusted: The name in the user's own recipe: only that function is imported, never one that a file
            names.
        is_tried: Whether two images of this shape are computed, to reject a network that does not take them.
            Never for a shape that a file claims: a small file must not size a computation.
    """
    if name in ARCHITECTURES:
        built: nn.Module = getattr(networks, name.replace("-", "_"))(shape, classes)
        return built
    if is_own_function(name):
        if name != trusted:
            raise cannot_build(
                name,
                "it is a function that the recipe does not name: only functions named there are imported",
                "If you trust that function, name it yourself.",
            )
        network = build_own(name, shape, classes)
    else:
        # Only what needs torchvision waits for its import.
        from ddpipe.model.torchvision_models import build_torchvision  # noqa: PLC0415

        network = build_torchvision(name, shape, classes)
    if is_tried:
        check_logits(network, name, shape, classes)
    return network
