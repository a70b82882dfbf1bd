"""Splits that exceed the cache: images are read one by one, and are the same ones."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from s3_server import BUCKET, Proxy
from samples import a_manifest, a_split, published, some_images, written

from ddpipe.data import reader as reading
from ddpipe.data.manifest import ShardRef, load_manifest, store_of
from ddpipe.data.reader import PartShard, open_split
from ddpipe.data.shards import SIZES, encode_jpegs, shard_key
from ddpipe.errors import DatasetError, ParameterError
from ddpipe.storage import open_store
from ddpipe.storage.files import FileStore

TRAIN = some_images(7)
OTHERS = {"validation": [some_images(2, seed=1)], "test": [some_images(2, seed=2)]}
LIMIT = "DDPIPE_CACHE_GB"


def _raw() -> str:
    return published(open_store(f"s3://{BUCKET}"), {"train": [TRAIN[:3], TRAIN[3:4], TRAIN[4:]], **OTHERS})


def _jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 20, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=60 + seed)
    return buffer.getvalue()


def _jpegs() -> str:
    """A version of JPEGs, of which the training split has two shards."""
    store, splits = open_store(f"s3://{BUCKET}"), {}
    for name, parts in {"train": [(1, 2, 3), (4, 5)], "validation": [(6,)], "test": [(7,)]}.items():
        encoded = [encode_jpegs(list(map(_jpeg, part))) for part in parts]
        for shard, data in encoded:
            store.write(shard_key(shard), data)
        count = sum(map(len, parts))
        splits[name] = a_split(count, shards=[shard for shard, _ in encoded], store=store)
    statistics = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    return written(store, a_manifest(splits=splits, shape=(16, 16, 3), **statistics))


def test_the_sizes_of_many_images_take_more_than_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, splits = open_store(str(tmp_path / "store")), {}
    for name, count in {"train": 200, "validation": 1, "test": 1}.items():
        shard, data = encode_jpegs([_jpeg(number % 20) for number in range(count)])
        store.write(shard_key(shard), data)
        splits[name] = a_split(count, shards=[shard], store=store)
    statistics = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    uri = written(store, a_manifest(splits=splits, shape=(16, 16, 3), **statistics))
    copied = open_split(uri, "train", tmp_path / "large")
    monkeypatch.setenv(LIMIT, "0")
    parts = open_split(uri, "train", tmp_path / "small")
    np.testing.assert_array_equal(parts.images([0, 150, 199]), copied.images([0, 150, 199]))


def test_the_head_that_is_read_fits_the_sizes_of_the_largest_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks, and nine bytes for each image."""
    count, size = 200, 99_999_999
    header = {SIZES: " ".join([str(size)] * count)}
    store, shard = open_store(str(tmp_path)), ShardRef("0" * 64, count * (size + 2000), count, "jpeg")
    store.write(shard_key(shard), tarfile.TarInfo.create_pax_global_header(header) + bytes(10_000))
    read, original = [], type(store).read_range

    def read_range(self: FileStore, key: str, start: int, length: int) -> bytes:
        read.append((key, start, length))
        return original(self, key, start, length)

    monkeypatch.setattr(type(store), "read_range", read_range)
    assert len(PartShard(store, shard, (16, 16, 3))) == count
    assert read == [(shard_key(shard), 0, 2 * 512 + 9 * count)]


@pytest.mark.parametrize("header", [-1, 0, 1])
def test_a_raw_shard_without_a_header_is_refused(header: int, tmp_path: Path) -> None:
    """Its pixels fill the file, or more than that."""
    shard, store = ShardRef("0" * 64, 3 * 24 + header, 3), open_store(str(tmp_path))
    if header > 0:
        store.write(shard_key(shard), bytes(header) + TRAIN[:3].tobytes())
        images = list(PartShard(store, shard, (4, 6, 1)).each(np.array([2, 0])))
        np.testing.assert_array_equal(images, TRAIN[[2, 0]])
    else:
        with pytest.raises(DatasetError, match=f"{shard_key(shard)}.*too few for 3 images of 24"):
            PartShard(store, shard, (4, 6, 1))


def _fetches(proxy: Proxy) -> list[str]:
    return [request for request in proxy.requests if request.startswith("GET") and "shards/" in request]


@pytest.mark.parametrize("dataset", [_raw, _jpegs])
def test_images_read_in_parts_are_those_of_the_copy(
    dataset: type, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = dataset()
    copied = open_split(uri, "train", tmp_path / "large")
    monkeypatch.setenv(LIMIT, "0")
    parts = open_split(uri, "train", tmp_path / "small")
    assert (parts.is_far, copied.is_far) == (True, False)
    for indices in ([0, 1, 2, 3, 4], [4, 0, 3, 3], []):
        np.testing.assert_array_equal(parts.images(indices), copied.images(indices))
    assert not list((tmp_path / "small").glob("shards/*"))


def test_each_image_is_one_request_and_the_start_reads_heads(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _jpegs()
    monkeypatch.setenv(LIMIT, "0")
    proxy.requests.clear()
    reader = open_split(uri, "train", tmp_path)
    assert len(_fetches(proxy)) == 2
    reader.images([3, 0, 4])
    assert len(_fetches(proxy)) == 5


def test_shards_that_are_here_already_are_read_from_disk(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _raw()
    open_split(uri, "train", tmp_path)
    monkeypatch.setenv(LIMIT, "0")
    proxy.requests.clear()
    np.testing.assert_array_equal(open_split(uri, "train", tmp_path).images(range(7)), TRAIN)
    assert not _fetches(proxy)


@pytest.mark.usefixtures("s3")
def test_the_limit_counts_what_the_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for all shards but one byte they stay in the store, with that byte they are copied."""
    uri = _raw()
    shards = load_manifest(uri).splits["train"].shards
    size = sum(shard.bytes for shard in shards)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "another.npy").write_bytes(b"x")
    monkeypatch.setenv(LIMIT, str(size / 1e9))
    open_split(uri, "train", tmp_path)
    assert len(list((tmp_path / "shards").glob("*.npy"))) == 1
    monkeypatch.delenv(LIMIT)
    monkeypatch.setattr(reading, "room", lambda _cache: size)
    open_split(uri, "train", tmp_path)
    assert len(list((tmp_path / "shards").glob("*.npy"))) == 1 + len(shards)


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("text", ["much", "-1", "nan"])
def test_a_limit_that_is_no_size_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _raw()
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(ParameterError, match="not a number of gigabytes"):
        open_split(uri, "train", tmp_path)


@pytest.mark.usefixtures("s3")
def test_a_shard_that_is_another_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head lists other images than the manifest; a part of it is no image."""
    uri = _jpegs()
    shard, other = load_manifest(uri).splits["train"].shards
    store = store_of(uri)
    monkeypatch.setenv(LIMIT, "0")
    reader = open_split(uri, "train", tmp_path)
    store.write(shard_key(shard), bytes(shard.bytes))
    with pytest.raises(DatasetError, match="image 0"):
        reader.images([0])
    store.write(shard_key(shard), store.read(shard_key(other)))
    with pytest.raises(DatasetError, match="lists 2 images, the manifest 3"):
        open_split(uri, "train", tmp_path / "new")
