"""Reading samples: by index across shards, from disk and from a bucket through the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from s3_server import BUCKET, Proxy
from samples import published, some_images

from ddpipe.data.manifest import SPLITS, load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.data.shards import Images
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject, ParameterError
from ddpipe.storage import open_store

TRAIN = some_images(7)
OTHERS = {"validation": [some_images(2, seed=1)], "test": [some_images(2, seed=2)]}


def _dataset(store_uri: str, train: list[Images] | None = None) -> str:
    return published(open_store(store_uri), {"train": train or [TRAIN[:3], TRAIN[3:4], TRAIN[4:]], **OTHERS})


def test_samples_are_read_in_the_order_asked_for(store_uri: str) -> None:
    reader = open_split(_dataset(store_uri), "train")
    assert len(reader) == 7
    for indices in ([0, 1, 2, 3, 4, 5, 6], [6, 0, 3, 3, 2], [4], []):
        np.testing.assert_array_equal(reader.images(indices), TRAIN[np.array(indices, dtype=int)])


def test_images_are_copies_that_may_be_changed(tmp_path: Path) -> None:
    reader = open_split(_dataset(str(tmp_path)), "train")
    reader.images([0])[:] = 0
    np.testing.assert_array_equal(reader.images([0]), TRAIN[:1])


def test_labels_and_ids_belong_to_the_samples(tmp_path: Path) -> None:
    reader = open_split(_dataset(str(tmp_path)), "test")
    assert reader.sample_ids == ("0/0.png", "1/1.png")
    assert (reader.labels.dtype, reader.labels.tolist()) == (np.int64, [0, 1])


@pytest.mark.parametrize("indices", [[7], [-1], [0, 99]])
def test_an_index_outside_is_an_error(indices: list[int], tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="7 samples"):
        open_split(_dataset(str(tmp_path)), "train").images(indices)


def test_a_manifest_read_already_is_not_fetched_again(tmp_path: Path) -> None:
    uri = _dataset(str(tmp_path))
    manifest, store = load_manifest(uri), store_of(uri)
    Path(uri).unlink()
    assert len(open_split((manifest, store), "train")) == 7


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="train, "):
        open_split(_dataset(str(tmp_path)), "training")


def test_a_shard_with_a_wrong_hash_is_refused(store_uri: str, tmp_path: Path) -> None:
    """Also where the store itself finds nothing wrong with it: it is the wrong object, but whole."""
    uri = _dataset(store_uri)
    store = open_store(store_uri)
    key = next(info.key for info in store.list("shards/"))
    store.write(key, b"something else")
    with pytest.raises(DatasetError, match="hash"):
        [open_split(uri, split, tmp_path / "cache") for split in SPLITS]
    assert not (tmp_path / "cache" / key).exists()


def test_a_missing_shard_is_named(store_uri: str) -> None:
    uri = _dataset(store_uri)
    store = open_store(store_uri)
    key = next(info.key for info in store.list("shards/"))
    store.delete(key)
    with pytest.raises(NoSuchObject, match=key):
        [open_split(uri, split) for split in SPLITS]


def test_a_cached_shard_is_not_fetched_again(proxy: Proxy, tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}")
    open_split(uri, "train", tmp_path)
    proxy.requests.clear()
    open_split(uri, "train", tmp_path)
    assert not [request for request in proxy.requests if "shards" in request]


def test_a_shard_changed_on_the_way_is_not_kept(proxy: Proxy, tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}", [TRAIN])
    manifest, store = load_manifest(uri), store_of(uri)
    proxy.faults.append("flip")
    with pytest.raises(CorruptObject):
        open_split((manifest, store), "train", tmp_path)
    np.testing.assert_array_equal(open_split(uri, "train", tmp_path).images([0]), TRAIN[:1])


def test_several_processes_at_once_fetch_each_shard_once(proxy: Proxy, tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}")
    proxy.requests.clear()
    script = (
        "import sys; from ddpipe.data.reader import open_split\n"
        "print(open_split(sys.argv[1], 'train').images([6]).sum())"
    )
    environment = os.environ | {"DDPIPE_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, uri], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(TRAIN[6].sum())] * 3
    assert (
        len([request for request in proxy.requests if request.startswith("GET") and "shards" in request]) == 3
    )
