"""A convolutional network made to learn images of about 32x32 pixels in few epochs.

Whitening of 2x2 patches, then three groups of two 3x3 convolutions. What makes it fast: the first layer is
computed from the images, not learned; each group pools before it normalizes, so that few values are touched
at full size; later convolutions start as the identity; the head takes the largest value of each feature map,
so that any image size will do and early epochs can use smaller images.

Source: the design of Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv:2404.00498, which
improves on Page, "How to train your ResNet", 2018 to 2019; reimplemented, with a fixed first layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu

SMALLEST = 16
"""Pixels: three halvings leave at least one."""

PATCH = 2
STATISTICS_MOMENTUM = 0.4
"""Share of the newest batch in the running statistics: trainings are short."""

VARIANCE_FLOOR = 5e-4
"""Added to the variance of each direction of patches, so that noise is not blown up."""


HEAD_DEVIATION = 1 / 8
"""Of the head's first weights: small, so that it learns at the rate of the other layers' shifts."""


class FastCNN(nn.Module):
    """From normalized images, shape (N, channels, H, W), to logits, shape (N, classes)."""

    whitening: Tensor

    def __init__(self, channels: int, classes: int, widths: tuple[int, int, int]) -> None:
        """Start with a whitening that takes patches as they are; `initialize` fits it to images."""
        super().__init__()
        directions = channels * PATCH**2
        basis = torch.eye(directions).view(directions, channels, PATCH, PATCH)
        self.register_buffer("whitening", torch.cat([basis, -basis]))
        self.groups = nn.Sequential(
            _Group(2 * directions, widths[0]), _Group(widths[0], widths[1]), _Group(widths[1], widths[2])
        )
        self.head = nn.Linear(widths[2], classes, bias=False)
        nn.init.normal_(self.head.weight, std=HEAD_DEVIATION)

    @torch.no_grad()
    def initialize(self, images: Tensor) -> None:
        """Fit the whitening to images: patches, projected on their principal directions, get variance 1.

        Every direction is there with both signs, so that what follows loses nothing by its activation.

        Args:
            images: Normalized, shape (N, channels, H, W); the same on all processes.
        """
        channels = images.shape[1]
        patches = images.unfold(2, PATCH, 1).unfold(3, PATCH, 1).permute(0, 2, 3, 1, 4, 5).flatten(3)
        rows = patches.reshape(-1, channels * PATCH**2).double()
        variances, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
        # An eigenvector has no sign of its own: without this, libraries could differ.
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        filters = (directions * largest.sign() / (variances + VARIANCE_FLOOR).sqrt()).T
        self.whitening.copy_(
            torch.cat([filters, -filters]).reshape(self.whitening.shape).to(self.whitening.dtype)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of normalized images, shape (N, C, H, W)."""
        features: Tensor = self.groups(gelu(conv2d(images, self.whitening)))
        logits: Tensor = self.head(features.amax((2, 3)))
        return logits / (HEAD_DEVIATION * self.head.in_features)


class _Group(nn.Module):
    """Two convolutions; the first one halves the image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, outputs), _normalization(outputs)
        self.second, self.second_norm = _convolution(outputs, outputs), _normalization(outputs)
        self.pool = nn.MaxPool2d(2)

    def forward(self, features: Tensor) -> Tensor:
        features = gelu(self.first_norm(self.pool(self.first(features))))
        return gelu(self.second_norm(self.second(features)))


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution whose first `inputs` outputs are copies of its inputs at the start."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:inputs])
    return convolution


def _normalization(channels: int) -> nn.BatchNorm2d:
    """Batch normalization with a learned shift and no learned scale: the next layer has one."""
    normalization = nn.BatchNorm2d(channels, momentum=STATISTICS_MOMENTUM)
    normalization.weight.requires_grad = False
    return normalization
