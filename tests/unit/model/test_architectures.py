"""Networks by name, and classifiers of stored images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ddpipe.data.manifest import Shape
from ddpipe.errors import ParameterError
from ddpipe.model import ARCHITECTURES, ModelNames, networks
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.onnx import to_onnx
from ddpipe.model.package import Signature
from ddpipe.model.scoring import with_views
from ddpipe.model.session import Session
from ddpipe.model.torchvision_models import first_convolution

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
    with pytest.raises(ParameterError, match=f"{smallest - 1}x{smallest} pixels"):
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
        ("networks_of_mine:other_size", "does not accept images of 4x6 pixels"),
        ("networks_of_mine:broken", r"KeyError: 'width' \(.*networks_of_mine.py, line 12: raise KeyError"),
    ],
)
def test_own_network_that_fails_is_rejected_with_the_reason(
    own_package: Path, function: str, seen: str
) -> None:
    with pytest.raises(ParameterError, match=seen):
        build(function, (4, 6, 1), 3, trusted=function)
