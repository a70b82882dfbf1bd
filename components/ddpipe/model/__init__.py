"""The model formats, shared by their writer (train) and their readers (evaluate, export, serve).

networks     networks, torchvision_models, own; classifier: one with its preprocessing, as it is trained
answers      scoring: logits of a split; tasks, metrics, scores: how good they are
checkpoint   checkpoint, tensors, training_record
package      package, preprocessing, onnx, session; evaluation and verdict, which come with it
versions     history

Names of networks are known here, so that a recipe can be checked where there is no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpipe.parameters import AUTO, OneOf

ARCHITECTURES: Mapping[str, str] = {
    "digits-cnn": "three 3x3 convolutions, 37,000 weights: for images from 4x4, such as digits",
    "lenet": "LeNet-5 with ReLU and max pooling, 62,000 weights: for images from 12x12, such as MNIST",
    "simple-cnn": "two 3x3 convolutions and two linear layers, 316,000 weights for 32x32: from 10x10",
    "fast-cnn-small": "fast-cnn of 48 to 96 channels, 320,000 weights",
    "fast-cnn": "whitening, then six convolutions, 64 to 256 channels, 2 million weights: from 16x16",
    "fast-cnn-large": "fast-cnn of 128 to 384 channels, 4.6 million weights",
}
"""The built-in networks: name and description."""

VIEWS: Mapping[str, str] = {
    "plain": "the image",
    "flips": "the image and its mirror image",
    "flips-and-shifts": "the image, the image moved a 32nd of its sides up and left, and down and right, and "
    "the mirror images of the three",
}
"""The views of an image whose logits are averaged, by the names of the parameter `test_time_views`."""

PASSES: Mapping[str, int] = {"plain": 1, "flips": 2, "flips-and-shifts": 6}
"""How often the network computes for an image, by the same names."""

_OWN_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TORCHVISION = re.compile(
    r"alexnet|googlenet|inception_v\d|(resnet|densenet)\d+|vgg\d+(_bn)?|resnext\d+_\w+|wide_resnet\d+_\d"
    r"|(mnasnet|squeezenet)\d_\d+|(convnext|efficientnet|maxvit|mobilenet|regnet|shufflenet|swin|vit)_\w+"
)
"""How torchvision names its classification models; only torchvision itself knows which exist."""


def is_own_function(name: str) -> bool:
    """Whether a function is named, as `package.module:function`."""
    return bool(_OWN_FUNCTION.fullmatch(name))


_OWN = "a function of your own as package.module:function"


@dataclass(frozen=True, slots=True)
class OneOfOrOwn(OneOf):
    """One of several names, or a function of the user's own."""

    def __contains__(self, value: str) -> bool:
        return value in self.names or is_own_function(value)

    def __str__(self) -> str:
        return f"{', '.join(self.names)}, or {_OWN}"


class ModelNames:
    """Every name that a network can have."""

    def __contains__(self, name: str) -> bool:
        return (
            name == AUTO
            or name in ARCHITECTURES
            or is_own_function(name)
            or bool(_TORCHVISION.fullmatch(name))
        )

    def __str__(self) -> str:
        known = f"{', '.join(ARCHITECTURES)}, {AUTO}, a torchvision classification model such as resnet18"
        return f"{known}, or {_OWN}"
