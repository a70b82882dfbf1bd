"""Our own networks: each a function of the images' shape and the number of classes.

A further one is a function here, and its name, with `-` for `_`, in `ddpipe.model.ARCHITECTURES`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu

from ddpipe.data.manifest import Shape
from ddpipe.model.own import cannot_build

FAST_CNN_SMALLEST = 16  # pixels: three halvings leave at least one

PATCH = 2

STATISTICS_MOMENTUM = 0.4  # share of the newest batch in the running statistics: trainings are short
VARIANCE_FLOOR = 5e-4  # added to the variance of each direction of patches, so that noise is not blown up
HEAD_DEVIATION = 1 / 8  # of the head's first weights: small, so that it learns at the rate of other shifts


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
        """Fit the whitening to normalized images, shape (N, channels, H, W): unit variance, in both signs."""
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
        self.first, self.first_norm = _identity_convolution(inputs, outputs), _normalization(outputs)
        self.second, self.second_norm = _identity_convolution(outputs, outputs), _normalization(outputs)
        self.pool = nn.MaxPool2d(2)

    def forward(self, features: Tensor) -> Tensor:
        features = gelu(self.first_norm(self.pool(self.first(features))))
        return gelu(self.second_norm(self.second(features)))


def _identity_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution whose first `inputs` outputs are copies of its inputs at the start."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:inputs])
    return convolution


def _normalization(channels: int) -> nn.BatchNorm2d:
    """Batch normalization with a learned shift and no learned scale: the next layer has one."""
    normalization = nn.BatchNorm2d(channels, momentum=STATISTICS_MOMENTUM)
    normalization.weight.requires_grad = False
    return normalization


def _check_size(name: str, shape: Shape, smallest: int) -> None:
    height, width, _ = shape
    if min(height, width) < smallest:
        raise cannot_build(
            name,
            f"the images are {width}x{height} pixels, it needs at least {smallest}x{smallest}",
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


def _halved(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution, nn.ReLU(), nn.MaxPool2d(2)


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Source: LeCun et al., Proceedings of the IEEE 86(11), 1998; with ReLU and max pooling."""
    _check_size("lenet", shape, 12)
    height, width = ((side // 2 - 4) // 2 for side in shape[:2])
    return nn.Sequential(
        *_halved(nn.Conv2d(shape[2], 6, 5, padding=2)),
        *_halved(nn.Conv2d(6, 16, 5)),
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
        *_halved(nn.Conv2d(shape[2], 32, 3)),
        *_halved(nn.Conv2d(32, 64, 3)),
        nn.Flatten(),
        nn.Linear(64 * height * width, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _fast_cnn(shape: Shape, classes: int, *, name: str, widths: tuple[int, int, int]) -> nn.Module:
    _check_size(name, shape, FAST_CNN_SMALLEST)
    return FastCNN(shape[2], classes, widths)


fast_cnn_small = partial(_fast_cnn, name="fast-cnn-small", widths=(48, 96, 96))
fast_cnn = partial(_fast_cnn, name="fast-cnn", widths=(64, 256, 256))
fast_cnn_large = partial(_fast_cnn, name="fast-cnn-large", widths=(128, 384, 384))
