"""Forward and evaluation of every network on a GPU's fake tensors: shapes, dtypes and devices, without a GPU.

A fake tensor says that it is on "cuda" and needs no driver; an operation that mixes devices fails as it would
on a GPU. Backward and autocast do not work there without a driver.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from network_families import FAMILIES, FAST, side_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ddpipe.model import VIEWS
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.scoring import with_views

CLASSES = 3
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    with torch.device("cpu"):
        yield FakeTensorMode()


def faked(value: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    fake = mode.from_tensor(value)
    with mode:
        return fake.to("cuda")


def on_cuda(name: str, side: int, channels: int, mode: FakeTensorMode) -> Classifier:
    """A classifier whose tensors are fakes on "cuda"."""
    real = Classifier(build(name, (side, side, channels), CLASSES), [0.5] * channels, [0.25] * channels)
    for module in real.modules():
        for key, weights in list(module.named_parameters(recurse=False)):
            setattr(module, key, nn.Parameter(faked(weights.detach(), mode)))
        for key, value in list(module.named_buffers(recurse=False)):
            setattr(module, key, faked(value, mode))
    return real


@pytest.mark.parametrize("channels", [1, 3], ids=["gray", "RGB"])
@pytest.mark.parametrize("name", NAMES)
def test_network_computes_on_a_gpu_in_both_modes(fake: FakeTensorMode, name: str, channels: int) -> None:
    side = side_of(name)
    classifier = on_cuda(name, side, channels, fake)
    with fake:
        images = torch.zeros(4, side, side, channels, dtype=torch.uint8, device="cuda")
        for training in (True, False):
            logits = classifier.train(training)(images)
            assert (logits.device.type, logits.shape, logits.dtype) == ("cuda", (4, CLASSES), torch.float32)


@pytest.mark.parametrize("views", VIEWS)
def test_views_are_evaluated_on_a_gpu(fake: FakeTensorMode, views: str) -> None:
    classifier = on_cuda("digits-cnn", 8, 1, fake).eval()
    with fake, torch.inference_mode():
        images = torch.zeros(4, 8, 8, 1, dtype=torch.uint8, device="cuda")
        assert with_views(classifier, views)(images).device.type == "cuda"


@pytest.mark.parametrize("name", ["fast-cnn-small", "fast-cnn"])
def test_first_weights_are_computed_on_a_gpu(fake: FakeTensorMode, name: str) -> None:
    classifier = on_cuda(name, 32, 3, fake)
    with fake:
        classifier.initialize(torch.zeros(16, 32, 32, 3, dtype=torch.uint8, device="cuda"))
        assert {value.device.type for value in classifier.state_dict().values()} == {"cuda"}


def test_mixed_devices_are_noticed(fake: FakeTensorMode) -> None:
    """What makes this file worth running: a buffer that stayed on the CPU fails."""
    classifier = on_cuda("digits-cnn", 8, 1, fake)
    with fake:
        classifier.mean = torch.zeros(1, 1, 1, 1).repeat(1, 1, 8, 1)
        images = torch.zeros(4, 8, 8, 1, dtype=torch.uint8, device="cuda")
        with pytest.raises(RuntimeError, match="cuda"):
            classifier(images)
