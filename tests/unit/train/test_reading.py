"""`ddpipe.open`: what a training loop of one's own reads, alone and as one of several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ddpipe
from ddpipe.data.reader import open_split
from ddpipe.errors import ParameterError
from ddpipe.train.batches import permutation
from ddpipe.train.reading import Dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    store = str(tmp_path_factory.mktemp("data") / "store")
    prepared = ddpipe.prepare(source="digits", store=store)
    opened = ddpipe.open("digits", store)
    assert opened.uri == prepared.manifest_uri
    return opened


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def be(rank: int, ranks: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    return be


def test_an_epoch_has_every_image_once_as_networks_get_them(data: Dataset) -> None:
    loader = data.loader("train", batch_size=100)
    batches = list(loader)
    images = torch.cat([images for images, _ in batches])
    assert len(batches) == len(loader)
    assert images.shape == (sum(shard.count for shard in data.manifest.splits["train"].shards), 1, 8, 8)
    assert abs(float(images.mean())) < 1e-2
    assert abs(float(images.std()) - 1) < 1e-2
    assert len(data.classes) == 10
    assert data.shape == (8, 8, 1)
    assert sorted({int(label) for _, labels in batches for label in labels}) == list(range(10))


def test_the_batches_are_those_of_a_training_with_the_same_seed(data: Dataset) -> None:
    """By default 32 images, over all ranks, of the training split in the order of seed 0."""
    split, place = open_split(data.uri, "train"), 0
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (data.manifest.mean, data.manifest.std))
    for seed, given in ((0, {}), (3, {"seed": 3, "batch_size": 32, "split": "train"})):
        order, place = permutation(seed, 0, len(split)), 0
        loader = data.loader(**given)  # type: ignore[arg-type]
        assert len(loader) == -(-len(split) // 32)
        for images, labels in loader:
            chosen = order[place : place + len(labels)]
            pixels = split.images(chosen).transpose(0, 3, 1, 2) / 255
            np.testing.assert_allclose(images, (pixels - mean) / std, atol=1e-5)
            assert labels.tolist() == split.labels[chosen].tolist()
            place += len(labels)
        assert place == len(split)
        assert loader.epoch == 1


def test_a_dataset_is_found_in_the_store_of_the_working_directory(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.uri.partition("/store/")[0])
    assert Path(ddpipe.open("digits").uri).samefile(data.uri)


def test_ranks_share_the_batches_of_one_process(data: Dataset, as_rank: Callable[[int, int], None]) -> None:
    alone = [labels for _, labels in data.loader("train", batch_size=33)]
    shares = []
    for rank in range(2):
        as_rank(rank, 2)
        shares.append([labels for _, labels in data.loader("train", batch_size=33)])
    for whole, first, second in zip(alone, *shares, strict=True):
        assert torch.equal(whole[0::2], first)
        assert torch.equal(whole[1::2], second)


def test_each_epoch_has_an_order_of_its_own_which_a_resumed_loop_finds_again(data: Dataset) -> None:
    def labels(epoch: int, augmentation: str = "none") -> torch.Tensor:
        loader = data.loader("validation", batch_size=50, augmentation=augmentation)
        loader.epoch = epoch
        return torch.cat([images.flatten(1) for images, _ in loader])

    loader = data.loader("validation", batch_size=50)
    first, second = (torch.cat([images.flatten(1) for images, _ in loader]) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(second, labels(1))
    assert not torch.equal(second, labels(1, "shift"))


def test_what_cannot_be_read_is_named(data: Dataset, as_rank: Callable[[int, int], None]) -> None:
    with pytest.raises(ParameterError, match="augmentation is 'all'"):
        data.loader(augmentation="all")
    as_rank(0, 4)
    with pytest.raises(ParameterError, match="batch_size is 2 for 4 ranks"):
        data.loader(batch_size=2)
    assert [len(labels) for _, labels in data.loader("test", batch_size=4)][:2] == [1, 1]


def test_the_ranks_of_a_process_group_need_no_environment(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [labels for _, labels in data.loader("test", batch_size=33)]
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 3}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    shares = [labels for _, labels in data.loader("test", batch_size=33)]
    assert [labels.tolist() for labels in shares] == [labels[1::3].tolist() for labels in alone]
