"""Weights of an earlier model as the start of a training, if they fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluation_runs import a_dataset
from model_packages import a_classifier, a_package, resealed
from recipes import plain
from safetensors.torch import save
from samples import published, some_images

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError
from ddpipe.model.classifier import Classifier, build
from ddpipe.storage import open_store
from ddpipe.train import initial
from ddpipe.train.auto import Device
from ddpipe.train.batches import permutation
from ddpipe.train.initial import initial_classifier, warm_weights
from ddpipe.train.recipe import Recipe
from ddpipe.train.start import fresh_choice


@pytest.fixture
def manifest(tmp_path: Path) -> DatasetManifest:
    return load_manifest(a_dataset(str(tmp_path / "store")))


def test_a_package_that_fits_gives_its_weights(tmp_path: Path, manifest: DatasetManifest) -> None:
    classifier = a_classifier(manifest)
    package = a_package(str(tmp_path / "model"), manifest)
    classifier.load_state_dict(warm_weights(package, classifier, manifest, manifest.shape))
    expected = a_classifier(manifest, seed=7).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in classifier.state_dict().items())


def test_every_mismatch_is_named(tmp_path: Path, manifest: DatasetManifest) -> None:
    other = replace(manifest, classes=("ball", "cube", "kité"), shape=(16, 16, 1))
    package, ours = a_package(str(tmp_path / "model"), other), replace(manifest, task="multilabel")
    with pytest.raises(ParameterError) as refused:
        warm_weights(package, a_classifier(manifest), ours, manifest.shape)
    for part in (
        " - task: multiclass in the package, multilabel in the dataset",
        " - shape of the images: (16, 16, 1) in the package, (8, 8, 1) in the dataset",
        " - classes: ['ball', 'cube', 'kité'] in the package, ['ball', 'kité'] in the dataset",
        "(3,) in the package, (2,) in the network",
    ):
        assert part in refused.value.seen


def test_a_network_of_other_layers_is_refused(tmp_path: Path, manifest: DatasetManifest) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    classifier = Classifier(network, manifest.mean, manifest.std)
    with pytest.raises(ParameterError, match=r"network\.1\.weight: (not in the package|shape)"):
        warm_weights(a_package(str(tmp_path / "model"), manifest), classifier, manifest, manifest.shape)


def test_a_start_has_the_weights_of_its_seed_and_of_the_first_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank and in every attempt; fast-cnn computes its first layer from images."""
    monkeypatch.setattr(initial, "INITIAL_SAMPLES", 5)
    shape = (16, 16, 3)
    splits = {name: [some_images(9, shape, seed=3)] for name in ("train", "validation", "test")}
    uri = published(open_store(str(tmp_path / "images")), splits)
    manifest, images = load_manifest(uri), open_split(uri, "train")
    made = initial_classifier(plain(model="fast-cnn-small", seed=4), manifest, images)
    torch.manual_seed(4)
    expected = Classifier(build("fast-cnn-small", shape, 2), manifest.mean, manifest.std)
    expected.initialize(torch.from_numpy(images.images(permutation(4, 0, 9)[:5])))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(made.state_dict()[name], value)


def test_images_shrink_to_the_smaller_side_of_those_that_the_weights_know(
    tmp_path: Path, manifest: DatasetManifest
) -> None:
    package = a_package(str(tmp_path / "model"), replace(manifest, shape=(7, 6, 1)))
    assert fresh_choice(Recipe(warm_start=package), manifest, Device()).recipe.resolution == 6


def test_a_training_starts_from_the_weights_that_pretrained_names(
    tmp_path: Path, manifest: DatasetManifest
) -> None:
    kept = build("resnet18", manifest.shape, len(manifest.classes)).state_dict()
    torch.save(kept, tmp_path / "weights.pth")
    recipe = Recipe(model="resnet18", pretrained=str(tmp_path / "weights.pth"), resolution=0)
    images = open_split(str(next(tmp_path.glob("**/manifest.json"))), "train")

    def agrees(*, resumed: bool) -> bool:
        network = initial_classifier(recipe, manifest, images, resumed=resumed).network
        return torch.equal(network.get_parameter("layer1.0.conv1.weight"), kept["layer1.0.conv1.weight"])

    assert agrees(resumed=False)
    assert not agrees(resumed=True)  # its weights are those of the checkpoint


def test_no_package_is_no_start(tmp_path: Path, manifest: DatasetManifest) -> None:
    with pytest.raises(NoSuchObject, match="there is no finished model package"):
        warm_weights(str(tmp_path), a_classifier(manifest), manifest, manifest.shape)


@pytest.mark.parametrize(
    ("content", "error", "seen"),
    [
        (b"\xff" * 8, CorruptObject, r"model\.safetensors"),
        (None, ParameterError, "mean: NaN or infinite"),
    ],
    ids=["no safetensors", "NaN"],
)
def test_weights_of_any_content_are_rejected(
    tmp_path: Path, manifest: DatasetManifest, content: bytes | None, error: type[Exception], seen: str
) -> None:
    """A seal proves that nothing changed since, not who wrote it."""
    package, classifier = a_package(str(tmp_path / "model"), manifest), a_classifier(manifest)
    if content is None:
        content = save({name: value / 0 * 0 for name, value in classifier.state_dict().items()})
    resealed(Path(package), "package.json", "model.safetensors", content)
    with pytest.raises(error, match=seen):
        warm_weights(package, classifier, manifest, manifest.shape)
