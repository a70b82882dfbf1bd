"""Operations without a deterministic kernel: which networks have them, and what is reported."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from network_families import FAST
from recipes import plain
from samples import published, some_images
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._subclasses.fake_tensor import FakeTensorMode

from ddpipe.errors import ParameterError
from ddpipe.storage import open_store
from ddpipe.train.recipe import Determinism, Recipe
from ddpipe.train.step import determinism
from ddpipe.train.train import train


class Puts(nn.Module):
    """A network with an operation that has no deterministic kernel on any device."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        if not self.training:
            return self.head(features)
        places = torch.arange(features.numel(), device=features.device)
        return self.head(torch.zeros_like(features).put_(places, features.flatten()))


def puts(shape: tuple[int, int, int], classes: int) -> nn.Module:
    del shape
    return Puts(classes)


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    splits = {name: [some_images(12, (8, 8, 1))] for name in ("train", "validation", "test")}
    return published(open_store(str(tmp_path / "data")), splits)


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return plain(model=f"{Path(__file__).stem}:puts", epochs=1, batch_size=4)


def test_auto_reports_an_operation_once_with_its_consequence(
    dataset: str, recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train(dataset, str(tmp_path / "training"), recipe)
    (line,) = [record.message for record in caplog.records if "deterministic" in record.message]
    assert line.startswith(
        "put_ has no deterministic kernel on this device: a resumed training will not be bit"
    )


def test_true_rejects_the_network_and_names_the_operation(
    dataset: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="put_ has no deterministic kernel") as raised:
        train(dataset, str(tmp_path / "training"), replace(recipe, deterministic="true"))
    assert "deterministic to auto" in raised.value.do
    assert recipe.model in raised.value.which


def test_false_reports_nothing(
    dataset: str, recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(dataset, str(tmp_path / "training"), replace(recipe, deterministic="false"))
    assert not [record for record in caplog.records if "deterministic" in record.message]


def test_settings_last_as_long_as_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for how, mode in ((Determinism.AUTO, 1), (Determinism.TRUE, 2), (Determinism.FALSE, 0)):
        with determinism(how, "a", compiled=False):
            assert torch.get_deterministic_debug_mode() == mode
            assert not torch.utils.deterministic.fill_uninitialized_memory
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # or torch stops on a GPU
        assert torch.get_deterministic_debug_mode() == 0
        assert torch.utils.deterministic.fill_uninitialized_memory


def test_the_compiler_is_deterministic_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "deterministic", False)
    for how, is_wanted in ((Determinism.AUTO, True), (Determinism.FALSE, False), (Determinism.TRUE, True)):
        with determinism(how, "a", compiled=True):
            assert inductor.deterministic is is_wanted


def test_other_errors_are_passed_on() -> None:
    with (
        pytest.raises(RuntimeError, match="shape mismatch"),
        determinism(Determinism.TRUE, "a", compiled=False),
    ):
        raise RuntimeError("shape mismatch")


FAMILIES = {
    "alexnet": {"AdaptiveAvgPool2d"},
    "convnext_tiny": set(),
    "densenet121": set(),
    "efficientnet_b0": set(),
    "googlenet": set(),
    "inception_v3": set(),
    "maxvit_t": set(),
    "mnasnet0_5": set(),
    "mobilenet_v2": set(),
    "mobilenet_v3_small": set(),
    "regnet_y_400mf": set(),
    "resnet18": set(),
    "resnext50_32x4d": set(),
    "shufflenet_v2_x0_5": set(),
    "squeezenet1_0": set(),
    "swin_t": set(),
    "swin_v2_t": set(),
    "vgg11": {"AdaptiveAvgPool2d"},
    "vit_b_16": set(),
    "wide_resnet50_2": set(),
}
"""A network of each family, and its operations that have no deterministic kernel on a GPU."""


def without_deterministic_kernel() -> set[str]:
    """The operations of torch's own list whose backward pass raises on a GPU."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    raising = text[text.index("will throw a") : text.index("In addition, several operations fill")]
    entries = re.findall(r"\* :\w+:`([\w.]+)` when attempting to differentiate a CUDA", raising)
    assert len(entries) > 10
    return {entry.rpartition(".")[2] for entry in entries}


def backward_nodes(output: Tensor) -> Iterator[str]:
    """The names of the operations that a backward pass from `output` would run."""
    seen, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node.name()
            waiting += [following for following, _ in node.next_functions]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_a_family_has_the_nondeterministic_operations_that_are_known(name: str) -> None:
    side = 299 if name == "inception_v3" else 224
    options = {"init_weights": False, "aux_logits": False} if side == 299 or name == "googlenet" else {}
    # RegNet computes its widths with tensors that must have values.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        network = torchvision.models.get_model(name, weights=None, **options)
    with FakeTensorMode(allow_non_fake_inputs=True):
        network.to_empty(device="cuda")
        images = torch.empty(2, 3, side, side, device="cuda")
        nodes = {node.lower() for node in backward_nodes(network(images))}
    listed = without_deterministic_kernel()
    assert {entry for entry in listed if any(entry.lower() in node for node in nodes)} == FAMILIES[name]


def test_every_torchvision_family_is_in_the_inventory() -> None:
    def family(name: str) -> str:
        return re.split(r"[\d_]", name)[0]

    names = torchvision.models.list_models(module=torchvision.models)
    assert {family(name) for name in names} == {family(name) for name in FAMILIES}
