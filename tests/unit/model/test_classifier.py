"""Networks by name, and classifiers of stored images.

The model of a finished training: rebuilt from a file that nobody has to trust.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ddpipe.data.manifest import Shape
from ddpipe.errors import CheckpointError, ParameterError
from ddpipe.model import ARCHITECTURES, ModelNames, networks
from ddpipe.model.checkpoint import Checkpoint, claim
from ddpipe.model.classifier import Classifier, build, load_model
from ddpipe.model.onnx import to_onnx
from ddpipe.model.package import Signature
from ddpipe.model.scoring import with_views
from ddpipe.model.session import Session
from ddpipe.model.torchvision_models import first_convolution
from ddpipe.storage import open_store

SHAPES: dict[str, Shape] = {
    "digits-cnn": (4, 5, 3),
    "lenet": (12, 14, 1),
    "simple-cnn": (11, 10, 3),
    "fast-cnn-small": (17, 16, 3),
    "squeezenet1_1": (17, 20, 1),
    "shufflenet_v2_x0_5": (17, 20, 1),
}
"""A small image for each family: torchvision's stand for all that are built by name."""


def some_images(count: int, shape: Shape) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def a_classifier(name: str, shape: Shape, classes: int = 3) -> Classifier:
    torch.manual_seed(0)
    return Classifier(build(name, shape, classes), [0.5] * shape[2], [0.2] * shape[2])


def test_every_name_has_its_builder() -> None:
    assert all(callable(getattr(networks, name.replace("-", "_"))) for name in ARCHITECTURES)


@pytest.mark.parametrize("name", SHAPES)
def test_classifier_takes_stored_images_of_any_number(name: str) -> None:
    classifier = a_classifier(name, SHAPES[name]).eval()
    for count in (1, 5):
        logits = classifier(some_images(count, SHAPES[name]))
        assert logits.shape == (count, 3)
        assert logits.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"squeezenet1_1"}))  # it drops out half its features
def test_few_steps_lower_the_loss(name: str) -> None:
    classifier = a_classifier(name, SHAPES[name])
    images, labels = some_images(12, SHAPES[name]), torch.arange(12) % 3
    classifier.initialize(images)
    weights = [weight for weight in classifier.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=2e-3)
    losses = []
    for _ in range(5):
        loss = cross_entropy(classifier(images), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        assert all(weight.grad is not None for weight in weights)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["simple-cnn", "fast-cnn-small", "squeezenet1_1"])
def test_every_family_answers_alike_as_onnx(name: str) -> None:
    shape = SHAPES[name]
    classifier = a_classifier(name, shape)
    classifier.initialize(some_images(64, shape))
    classifier.eval()
    signature = Signature(architecture=name, shape=shape, classes=("a", "b", "c"))
    session = Session(to_onnx(classifier, signature))
    images = some_images(3, shape)
    with torch.inference_mode():
        expected = classifier(images).numpy()
    np.testing.assert_allclose(session(images.numpy()), expected, rtol=1e-3, atol=1e-5)


def test_each_channel_is_normalized_by_its_own_mean_and_deviation() -> None:
    classifier = Classifier(torch.nn.Flatten(), mean=[0.0, 0.5], std=[1.0, 0.25])
    pixels = torch.tensor([[[[255, 255]]]], dtype=torch.uint8)
    assert classifier(pixels).tolist() == [[1.0, 2.0]]


def test_channel_that_never_varies_does_not_divide_by_zero() -> None:
    classifier = Classifier(torch.nn.Flatten(), mean=[1.0], std=[0.0])
    assert classifier(torch.full((1, 2, 2, 1), 255, dtype=torch.uint8)).isfinite().all()


@pytest.mark.parametrize("name", ["digits-cnn", "fast-cnn-small"])
def test_same_seed_gives_the_same_weights(name: str) -> None:
    first, second = (_weights_of_seed(name, 7) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def _weights_of_seed(name: str, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    classifier = Classifier(build(name, (16, 16, 1), 10), [0.5], [0.2])
    classifier.initialize(some_images(8, (16, 16, 1)))
    return list(classifier.state_dict().values())


def test_fast_network_whitens_patches_of_its_first_images() -> None:
    images = torch.randn(200, 3, 20, 20)
    images[:, 1] += 0.9 * images[:, 0]
    network = build("fast-cnn-small", (20, 20, 3), 10)
    network.initialize(images)
    outputs = torch.nn.functional.conv2d(images, network.whitening)
    half = outputs[:, :12].permute(1, 0, 2, 3).flatten(1)
    torch.testing.assert_close(half @ half.T / half.shape[1], torch.eye(12), atol=0.02, rtol=0)
    torch.testing.assert_close(outputs[:, 12:], -outputs[:, :12])
    filters = network.whitening[:12].flatten(1)  # libraries may differ in the signs of eigenvectors
    assert (filters.gather(1, filters.abs().argmax(1, keepdim=True)) > 0).all()


def test_fast_network_learns_from_smaller_images_too() -> None:
    network = build("fast-cnn-small", (32, 32, 3), 10)
    assert network(torch.zeros(2, 3, 20, 20)).shape == (2, 10)


@pytest.mark.parametrize(
    "name",
    ["auto", *ARCHITECTURES, "resnet18", "vgg11_bn", "vit_b_16", "mypackage.networks:tiny", "mine:net"],
)
def test_possible_network_name_is_accepted_without_torch(name: str) -> None:
    assert name in ModelNames()


@pytest.mark.parametrize("name", ["", "vgg", "resnet", "resnet-18", "mine:", ":net", "../mine:net", "a b:c"])
def test_name_that_no_network_can_have_is_rejected(name: str) -> None:
    assert name not in ModelNames()


def test_every_torchvision_classification_model_can_be_named() -> None:
    torchvision = pytest.importorskip("torchvision")
    names = torchvision.models.list_models(module=torchvision.models)
    assert [name for name in names if name not in ModelNames()] == []


def test_name_unknown_to_torchvision_is_rejected_with_near_ones() -> None:
    with pytest.raises(ParameterError, match=r"'resnet19'.*resnet18"):
        build("resnet19", (64, 64, 3), 10)


@pytest.mark.parametrize(("name", "smallest"), [("digits-cnn", 4), ("lenet", 12), ("simple-cnn", 10)])
def test_images_too_small_for_a_network_are_refused(name: str, smallest: int) -> None:
    build(name, (smallest, smallest, 1), 10)
    with pytest.raises(ParameterError, match=f"{smallest}x{smallest - 1} pixels"):
        build(name, (smallest - 1, smallest, 1), 10)


def test_images_that_a_torchvision_model_cannot_take_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"'squeezenet1_1'.*4x4 pixels"):
        build("squeezenet1_1", (4, 4, 3), 10)


def test_simple_cnn_has_the_documents_layers() -> None:
    layers = [layer for layer in build("simple-cnn", (32, 32, 3), 10).modules() if not list(layer.children())]
    convolution = [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    dense = [nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in layers] == [*2 * convolution, nn.Flatten, *dense]
    linear = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert linear == [(2304, 128), (128, 10)]


def test_residual_network_looks_at_every_pixel_of_small_images_only() -> None:
    small, large = (build("resnet18", (side, side, 1), 10) for side in (32, 96))
    assert (small.conv1.kernel_size, small.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(small.maxpool, nn.Identity)
    assert (large.conv1.kernel_size, large.conv1.stride) == ((7, 7), (2, 2))
    assert large.conv1.in_channels == 1


def test_stem_of_large_patches_keeps_their_size() -> None:
    stems = [first_convolution(build("squeezenet1_0", (side, side, 3), 10))[1] for side in (64, 224)]
    assert [(stem.kernel_size, stem.stride) for stem in stems] == [((7, 7), (1, 1)), ((7, 7), (2, 2))]


def test_flips_average_an_image_and_its_mirror_image() -> None:
    images = torch.randint(0, 256, (3, 8, 8, 1), dtype=torch.uint8)
    classifier = Classifier(build("digits-cnn", (8, 8, 1), 4), [0.5], [0.2]).eval()
    mirror_images = torch.from_numpy(images.numpy()[:, :, ::-1].copy())
    expected = torch.stack([classifier(images), classifier(mirror_images)]).mean(0)
    torch.testing.assert_close(with_views(classifier, "flips")(images), expected)


@pytest.mark.parametrize(("side", "pixels"), [(8, 1), (64, 2)])
def test_shifted_views_are_crops_with_a_mirrored_margin(side: int, pixels: int) -> None:
    images = torch.randint(0, 256, (3, side, side, 1), dtype=torch.uint8)
    classifier = Classifier(build("digits-cnn", (side, side, 1), 4), [0.5], [0.2]).eval()
    margin = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    padded = np.pad(images.numpy(), margin, mode="reflect")
    crops = [padded[:, at : at + side, at : at + side] for at in (0, pixels, 2 * pixels)]
    views = [torch.from_numpy(view.copy()) for crop in crops for view in (crop, crop[:, :, ::-1])]
    expected = torch.stack([classifier(view) for view in views]).mean(0)
    torch.testing.assert_close(with_views(classifier, "flips-and-shifts")(images), expected)


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that the user wrote, where Python finds it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "networks_of_mine.py").write_text(
        "from torch import nn\n"
        "def linear(shape, classes):\n"
        "    height, width, channels = shape\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, classes))\n"
        "def no_network(shape, classes):\n    return 3\n"
        "def other_classes(shape, classes):\n    return linear(shape, classes + 1)\n"
        "def other_size(shape, classes):\n    return nn.Linear(7, classes)\n"
        "def broken(shape, classes):\n    raise KeyError('width')\n"
    )
    return tmp_path


def test_own_network_is_built_by_its_function(own_package: Path) -> None:
    network = build("networks_of_mine:linear", (4, 6, 1), 3, trusted="networks_of_mine:linear")
    assert network(torch.zeros(5, 1, 4, 6)).shape == (5, 3)


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        ("networks_of_mine:missing", "has no attribute 'missing'"),
        ("nowhere_to_be_found:net", "No module named 'nowhere_to_be_found'"),
        ("networks_of_mine:no_network", "returned int, not a torch.nn.Module"),
        ("networks_of_mine:other_classes", r"for 2 images it returns \(2, 4\), not \(2, 3\)"),
        (
            "networks_of_mine:other_size",
            r"does not accept images of 6x4 pixels.* gets shape = \(height, width, channels\)",
        ),
        ("networks_of_mine:broken", r"KeyError: 'width' \(.*networks_of_mine.py, line 12: raise KeyError"),
    ],
)
def test_own_network_that_fails_is_rejected_with_the_reason(
    own_package: Path, function: str, seen: str
) -> None:
    with pytest.raises(ParameterError, match=seen):
        build(function, (4, 6, 1), 3, trusted=function)


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
