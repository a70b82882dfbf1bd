"""The model of a finished training: rebuilt from a file that nobody has to trust."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpipe.errors import CheckpointError
from ddpipe.model.checkpoint import Checkpoint, claim
from ddpipe.model.classifier import Classifier, build, load_model
from ddpipe.storage import open_store

SHAPE, CLASSES = (8, 8, 1), 3


def a_checkpoint(**changes: Any) -> Checkpoint:
    """Of digits-cnn, different in `changes`."""
    torch.manual_seed(0)
    model = Classifier(build("digits-cnn", SHAPE, CLASSES), [0.25], [0.5])
    usual = Checkpoint(
        step=1,
        epoch=1,
        recipe={},
        dataset_id="d" * 64,
        network={"name": "digits-cnn", "shape": SHAPE, "classes": CLASSES},
        world_size=1,
        states={"model": model.state_dict()},
        history=[],
    )
    return replace(usual, **changes)


def a_training(folder: Path, checkpoint: Checkpoint) -> str:
    """A finished training whose result is this checkpoint."""
    store = open_store(str(folder / "training"))
    saved = claim(store, None).save(checkpoint)
    store.write("training.json", json.dumps({"checkpoint": asdict(saved)}).encode())
    return store.uri


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory that leaves a file when it is imported, and one when it is called."""
    (tmp_path / "network_of_mine.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n"
        "Path('imported').touch()\n"
        "def linear(shape, classes):\n"
        "    Path('called').touch()\n"
        "    height, width, channels = shape\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(tmp_path)}])
    monkeypatch.delitem(sys.modules, "network_of_mine", raising=False)
    return "network_of_mine:linear"


def own_checkpoint(module: str) -> Checkpoint:
    model = Classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, CLASSES)), [0.25], [0.5])
    return a_checkpoint(
        network={"name": module, "shape": SHAPE, "classes": CLASSES}, states={"model": model.state_dict()}
    )


@pytest.mark.parametrize("network", ["", "digits-cnn", "network_of_mine:other", "network_of_mine"])
def test_function_named_by_a_file_alone_is_not_imported(tmp_path: Path, module: str, network: str) -> None:
    training = a_training(tmp_path, own_checkpoint(module))
    with pytest.raises(CheckpointError, match=r"names the function network_of_mine:linear.*If you trust"):
        load_model(training, network=network)
    assert not (tmp_path / "imported").exists()
    assert "network_of_mine" not in sys.modules


def test_command_named_by_a_file_is_not_run(tmp_path: Path) -> None:
    """`subprocess:call` with the file's values would have run a command."""
    target = tmp_path / "ran"
    network = {"name": "subprocess:call", "shape": ["touch", str(target)], "classes": 0}
    with pytest.raises(CheckpointError, match="is not a shape"):
        load_model(a_training(tmp_path, a_checkpoint(network=network)), network="subprocess:call")
    with pytest.raises(CheckpointError):
        load_model(a_training(tmp_path, a_checkpoint(network={**network, "shape": [1, 1, 1]})))
    assert not target.exists()


def test_function_named_by_the_user_is_found_where_train_finds_it(tmp_path: Path, module: str) -> None:
    """Training runs by `python -m` and looks in the working directory; an installed command does not."""
    classifier, _ = load_model(a_training(tmp_path, own_checkpoint(module)), network=module)
    assert classifier(torch.zeros(2, *SHAPE, dtype=torch.uint8)).shape == (2, CLASSES)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "auto"},
        {"name": None},
        {"name": "__init__"},
        {"name": ["digits-cnn"]},
        {"name": "digits-cnn\n"},
        {"shape": "888"},
        {"shape": [8, 8]},
        {"shape": [8, 8, 1, 1]},
        {"shape": [8.0, 8, 1]},
        {"shape": [True, 8, 1]},
        {"shape": [8, 8, 0]},
        {"shape": [10**9, 10**9, 1]},
        {"shape": {"0": 8}},
        {"classes": 10**12},
        {"classes": "3"},
        {"classes": True},
        {"classes": -3},
        {"classes": None},
    ],
    ids=repr,
)
def test_network_that_cannot_be_is_rejected(tmp_path: Path, changes: dict[str, Any]) -> None:
    network = {"name": "digits-cnn", "shape": SHAPE, "classes": CLASSES, **changes}
    with pytest.raises(CheckpointError, match="the model cannot be rebuilt"):
        load_model(a_training(tmp_path, a_checkpoint(network=network)))


@pytest.mark.parametrize(
    "network",
    [
        {"name": "lenet", "shape": (60_000, 60_000, 1), "classes": CLASSES},
        {"name": "resnet18", "shape": SHAPE, "classes": 1_000_000},
        {"name": "regnet_y_400mf", "shape": (64, 64, 1), "classes": 1_000_000},
        {"name": "resnet18", "shape": SHAPE, "classes": CLASSES},
        {"name": "lenet", "shape": SHAPE, "classes": CLASSES},
    ],
    ids=repr,
)
def test_file_cannot_claim_a_network_that_it_lacks(tmp_path: Path, network: dict[str, Any]) -> None:
    """The first would need terabytes of memory if it were built before it is compared."""
    with pytest.raises(CheckpointError, match="the model cannot be rebuilt"):
        load_model(a_training(tmp_path, a_checkpoint(network=network)))


@pytest.mark.parametrize("states", [{}, {"model": [1]}, {"model": {"mean": 1.0}}, {"model": {}}], ids=repr)
def test_states_without_weights_are_rejected(tmp_path: Path, states: Any) -> None:
    with pytest.raises(CheckpointError, match="the model cannot be rebuilt"):
        load_model(a_training(tmp_path, a_checkpoint(states=states)))


@pytest.mark.parametrize("name", ["regnet_y_400mf", "squeezenet1_1"])
def test_torchvision_network_is_rebuilt(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = Classifier(build(name, (64, 64, 1), CLASSES), [0.25], [0.5])
    network = {"name": name, "shape": (64, 64, 1), "classes": CLASSES}
    checkpoint = a_checkpoint(network=network, states={"model": model.state_dict()})
    found, _ = load_model(a_training(tmp_path, checkpoint))
    images = torch.zeros(2, 64, 64, 1, dtype=torch.uint8)
    assert torch.equal(found(images), model.eval()(images))


def test_file_cannot_size_a_computation(tmp_path: Path) -> None:
    """The weights of a convolutional network fit images of any size: gigabytes, if two were computed."""
    model = Classifier(build("resnet18", (96, 96, 3), CLASSES), [0.25] * 3, [0.5] * 3)
    network = {"name": "resnet18", "shape": (60_000, 60_000, 3), "classes": CLASSES}
    checkpoint = a_checkpoint(network=network, states={"model": model.state_dict()})
    load_model(a_training(tmp_path, checkpoint))


@pytest.mark.parametrize(
    "pointed", [{"step": float("inf")}, {"step": "3"}, {"best": 1}, {"sha256": None}, {"more": 1}], ids=repr
)
def test_pointer_of_any_content_is_rejected(tmp_path: Path, pointed: dict[str, Any]) -> None:
    training = a_training(tmp_path, a_checkpoint())
    record = tmp_path / "training" / "training.json"
    named = json.loads(record.read_text())["checkpoint"]
    record.write_text(json.dumps({"checkpoint": named | pointed}))
    with pytest.raises(CheckpointError, match="malformed"):
        load_model(training)
    record.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="malformed"):
        load_model(training)


def test_checkpoint_of_less_than_nothing_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="negative counts"):
        load_model(a_training(tmp_path, a_checkpoint(epoch=-1)))
