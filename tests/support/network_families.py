"""One network of each family, ours and torchvision's, with image sizes that each takes."""

from __future__ import annotations

from ddpipe.model import ARCHITECTURES

FAMILIES = (
    *ARCHITECTURES,
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11_bn",
    "vit_b_16",
    "wide_resnet50_2",
)
"""Names; torchvision's stand for all models of their family."""

FAST = (
    "digits-cnn",
    "lenet",
    "simple-cnn",
    "fast-cnn-small",
    "resnet18",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
)
"""Those that are small enough for tests that always run."""

_SMALLEST = {
    "digits-cnn": 8,
    "lenet": 28,
    "simple-cnn": 28,
    "alexnet": 64,
    "inception_v3": 96,
    "maxvit_t": 224,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11_bn": 32,
    "vit_b_16": 64,
}


def side_of(name: str) -> int:
    """A side, in pixels, of small images that the network takes."""
    return _SMALLEST.get(name, 32)
