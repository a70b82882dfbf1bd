"""A network of the user's own: tried before training, and its errors reported with the user's lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from evaluation_runs import a_dataset
from recipes import plain

from ddpipe import workflow
from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.errors import CheckpointError, ParameterError
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import build
from ddpipe.model.own import build_own, try_training
from ddpipe.model.package import load_package
from ddpipe.runs import Run
from ddpipe.train.initial import initial_classifier
from ddpipe.train.train import train

SHAPE = (8, 8, 1)
MODULE = """
import sys, torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, classes, body=lambda self, x: x):
        super().__init__()
        self.layer, self.body = nn.Linear(64, classes), body
    def forward(self, images):
        return self.layer(self.body(self, images.flatten(1)))

def linear(shape, classes):
    return Mine(classes)

def fails_forward(shape, classes):
    return Mine(classes, lambda self, x: x @ torch.zeros(3, 3))

def fails_in_training(shape, classes):
    def body(self, x):
        if self.training:
            raise KeyError("only in training")
        return x
    return Mine(classes, body)

def leaves_in_forward(shape, classes):
    return Mine(classes, lambda self, x: sys.exit(3))

def fails_backward(shape, classes):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()
        @staticmethod
        def backward(context, gradient):
            raise ZeroDivisionError("in backward")
    class Late(Mine):
        def forward(self, images):
            return Broken.apply(super().forward(images))
    return Late(classes)

def frozen(shape, classes):
    return Mine(classes).requires_grad_(False)

def without_parameters(shape, classes):
    class Sum(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :classes]
    return Sum()

def not_exportable(shape, classes):
    def body(self, x):
        return x * (1.0 if x.sum().item() > 0 else 2.0)
    return Mine(classes, body)

def with_statistics(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, classes))

def without_layers(shape, classes):
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(64, classes) / 8)
        def forward(self, images):
            return images.flatten(1) @ self.weights
    return Weights()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user's module, in the working directory."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(tmp_path)}])
    return name


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        ("fails_forward", r"mat1 and mat2.*mine_.*\.py, line 10.*line 16"),
        ("fails_in_training", r"KeyError: 'only in training'.*mine_.*\.py, line 21: raise KeyError"),
        ("leaves_in_forward", r"SystemExit: 3.*mine_.*\.py, line 26"),
        ("fails_backward", "ZeroDivisionError: in backward.*line 35"),
        ("frozen", "no weights that can be trained"),
        ("without_parameters", "no weights that can be trained"),
    ],
)
def test_network_that_cannot_train_is_rejected_before_training(module: str, function: str, seen: str) -> None:
    name = f"{module}:{function}"
    with pytest.raises(ParameterError, match=seen) as caught:
        try_training(build(name, SHAPE, 2, trusted=name), name, SHAPE)
    assert name in caught.value.which
    assert "bug" not in str(caught.value)


def test_trial_leaves_weights_statistics_and_random_numbers(module: str) -> None:
    network = build_own(f"{module}:with_statistics", SHAPE, 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    try_training(network, f"{module}:with_statistics", SHAPE)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weights.grad is None for weights in network.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert network.training


@pytest.mark.slow
@pytest.mark.parametrize("function", ["not_exportable", "linear", "without_layers"])
def test_own_network_is_trained_evaluated_and_exported(
    module: str, function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, run = f"{module}:{function}", Run(str(tmp_path / "runs" / "first"))
    dataset = a_dataset(str(tmp_path / "store"))
    recipe = plain(model=name, epochs=1, batch_size=6, precision="fp32")
    with caplog.at_level("WARNING"):
        train(dataset, run.training, recipe)
    exportable = function != "not_exportable"
    assert ("cannot be exported as ONNX" in caplog.text) == (not exportable)
    with pytest.raises(CheckpointError, match="names the function"):
        workflow.evaluate(run, dataset, EvaluateSpec())
    workflow.evaluate(run, dataset, EvaluateSpec(), name)
    workflow.export(run, dataset, name)
    package = load_package(run.model)
    assert ("model.onnx" in package.folder.sha256) == exportable
    card = package.folder.read("README.md").decode()
    assert ("There is no `model.onnx`" in card) == (not exportable)
    assert f"from {module} import {function} as build" in card


def test_trial_comes_before_the_first_image_is_read(module: str, tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    manifest, images = load_manifest(dataset), open_split(dataset, "train")
    recipe = plain(model=f"{module}:fails_in_training")
    with pytest.raises(ParameterError, match="only in training"):
        initial_classifier(recipe, manifest, images)
