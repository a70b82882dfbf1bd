"""Pretrained weights, and what is done to fit them to other images and classes."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError
from urllib.request import Request

import pytest
import s3_server
import torch
from s3_server import Server
from safetensors.torch import save as to_safetensors
from torch import nn

from ddpipe.errors import NoSuchObject, ParameterError, Unreachable
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.torchvision_models import load_pretrained, look_up
from ddpipe.storage import write_uri

LARGE, SMALL = (96, 96), (32, 32)


def resnet(size: tuple[int, int], channels: int = 3, classes: int = 5, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("resnet18", (*size, channels), classes)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Stands for a network that was trained long on photographs of 7 classes."""
    return resnet(LARGE, classes=7, seed=1)


@pytest.fixture(scope="module")
def weights(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save({"state_dict": {f"module.{key}": value for key, value in trained.state_dict().items()}}, path)
    return path


def test_everything_but_a_head_of_other_classes_is_taken(trained: nn.Module, weights: Path) -> None:
    network = resnet(LARGE)
    head = network.fc.weight.clone()
    load_pretrained(network, "resnet18", str(weights), 5)
    expected, own = trained.state_dict(), network.state_dict()
    assert all(torch.equal(own[key], expected[key]) for key in own if not key.startswith("fc."))
    assert torch.equal(network.fc.weight, head)


def test_head_of_as_many_classes_is_taken_too(trained: nn.Module, weights: Path) -> None:
    network = resnet(LARGE, classes=7)
    load_pretrained(network, "resnet18", str(weights), 7)
    assert torch.equal(network.fc.weight, trained.fc.weight)


def test_weights_are_taken_from_a_bucket(trained: nn.Module, weights: Path, s3: Server) -> None:
    uri, network = f"s3://{s3_server.BUCKET}/weights/resnet18.pth", resnet(LARGE, classes=7)
    write_uri(uri, weights.read_bytes())
    load_pretrained(network, "resnet18", uri, 7)
    assert torch.equal(network.fc.weight, trained.fc.weight)


def test_gray_image_counts_as_its_copy_in_every_channel(trained: nn.Module, weights: Path) -> None:
    network = resnet(LARGE, channels=1)
    load_pretrained(network, "resnet18", str(weights), 5)
    gray = torch.randn(2, 1, 40, 40)
    torch.testing.assert_close(network.conv1(gray), trained.conv1(gray.expand(-1, 3, -1, -1)))


def test_stem_for_small_images_takes_the_centre_of_the_large_one(trained: nn.Module, weights: Path) -> None:
    network = resnet(SMALL)
    load_pretrained(network, "resnet18", str(weights), 5)
    assert torch.equal(network.conv1.weight, trained.conv1.weight[:, :, 2:5, 2:5])


def test_small_gray_stem_takes_the_centre_of_all_channels(trained: nn.Module, weights: Path) -> None:
    network = resnet(SMALL, channels=1)
    load_pretrained(network, "resnet18", str(weights), 5)
    center = trained.conv1.weight[:, :, 2:5, 2:5]
    torch.testing.assert_close(network.conv1.weight, center.sum(1, keepdim=True))


def test_weights_of_a_model_package_are_taken(tmp_path: Path) -> None:
    before = Classifier(build("digits-cnn", (8, 8, 1), 4), [0.5], [0.2])
    (tmp_path / "model.safetensors").write_bytes(to_safetensors(before.state_dict()))
    after = build("digits-cnn", (8, 8, 1), 3)
    load_pretrained(after, "digits-cnn", str(tmp_path / "model.safetensors"), 3)
    assert torch.equal(after[0].weight, before.network[0].weight)


def test_weights_of_another_network_are_refused_with_what_is_missing(weights: Path) -> None:
    with pytest.raises(ParameterError, match=r"(?s)do not fit.*'resnet34'.*layer1\.2\.conv1\.weight"):
        load_pretrained(build("resnet34", (*LARGE, 3), 5), "resnet34", str(weights), 5)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchObject, match=r"nothing\.pth"):
        load_pretrained(resnet(SMALL), "resnet18", str(tmp_path / "nothing.pth"), 5)


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.pth", b""),
        ("noise.pth", b"\x80\x02noise"),
        ("noise.safetensors", b"\xff" * 100),
        ("pickle.pth", pickle.dumps(_Harmful(), protocol=2)),
    ],
)
def test_file_without_weights_is_rejected_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ParameterError, match="pretrained weights cannot be read"):
        load_pretrained(resnet(SMALL), "resnet18", str(tmp_path / name), 5)
    assert not (tmp_path / "harm").exists()


def test_message_about_a_pickle_does_not_advise_to_open_it(tmp_path: Path) -> None:
    """torch's own text says to set weights_only=False."""
    torch.save(nn.Linear(2, 2), tmp_path / "model.pth")
    with pytest.raises(ParameterError, match="holds Python objects") as caught:
        load_pretrained(resnet(SMALL), "resnet18", str(tmp_path / "model.pth"), 5)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_rejected(tmp_path: Path, broken: float) -> None:
    weights = resnet(SMALL).state_dict()
    weights["layer1.0.conv1.weight"][0, 0, 0, 0] = broken
    torch.save(weights, tmp_path / "broken.pth")
    with pytest.raises(
        ParameterError, match=r"1 of \d+ weights are NaN or infinite.*layer1\.0\.conv1\.weight"
    ):
        load_pretrained(resnet(SMALL), "resnet18", str(tmp_path / "broken.pth"), 5)


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_what_is_no_file_is_rejected_at_once(tmp_path: Path, kind: str) -> None:
    """A FIFO waits for a writer, and /dev/zero never ends."""
    os.mkfifo(tmp_path / "weights.pth")
    source = str(tmp_path / "weights.pth") if kind == "FIFO" else "/dev/zero"
    with pytest.raises(NoSuchObject, match="FIFO, socket or device"):
        load_pretrained(resnet(SMALL), "resnet18", source, 5)


def test_file_of_something_else_is_rejected(tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"epoch": 3}, content)
    (tmp_path / "other.pth").write_bytes(content.getvalue())
    with pytest.raises(ParameterError, match="does not hold weights by name"):
        load_pretrained(resnet(SMALL), "resnet18", str(tmp_path / "other.pth"), 5)


def test_error_without_internet_says_how_to_bring_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_internet(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_internet)
    with pytest.raises(Unreachable, match=r"resnet18-.*\.pth.*not known.*Get the file"):
        load_pretrained(resnet(SMALL), "resnet18", "torchvision", 5)


def test_built_in_networks_have_no_weights_at_torchvision() -> None:
    with pytest.raises(ParameterError, match="there are no pretrained weights"):
        load_pretrained(build("simple-cnn", (32, 32, 3), 5), "simple-cnn", "torchvision", 5)


def no_server(request: Request, *, timeout: float) -> NoReturn:
    raise URLError("no route to host")


def test_weights_in_the_cache_of_torch_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    missing = look_up("resnet18", no_server)
    assert not missing.found
    assert str(tmp_path) in missing.seen
    assert "no route to host" in missing.seen
    (tmp_path / "checkpoints" / missing.seen.partition(" ")[0]).touch()
    assert look_up("resnet18", no_server).found


def test_weights_that_a_server_has_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    asked: list[str] = []

    def answers(request: Request, *, timeout: float) -> io.BytesIO:
        asked.append(request.get_method())
        return io.BytesIO()

    assert look_up("resnet18", answers).found
    assert asked == ["HEAD"]


def test_a_network_without_weights_has_none_to_find() -> None:
    assert not look_up("resnet19", no_server).found
