"""`ddpipe.open`: what a training loop of one's own reads, alone and as one of several ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ddpipe
from ddpipe.errors import ParameterError
from ddpipe.train.reading import Dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    store = str(tmp_path_factory.mktemp("store"))
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
