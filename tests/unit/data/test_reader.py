"""Reading samples: by index across shards, from disk and from a bucket through the cache."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, get_ident
from types import SimpleNamespace

import numpy as np
import pytest
from s3_server import BUCKET, Proxy
from samples import published, some_images
from stored import encode

from ddpipe.data import fetching, reader
from ddpipe.data.cache import default_cache
from ddpipe.data.manifest import SPLITS, load_manifest, store_of
from ddpipe.data.reader import open_shards, open_split, prefetched
from ddpipe.data.shards import Images, reduced_image, shard_key
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject, NotWritable, ParameterError
from ddpipe.storage import open_store

TRAIN = some_images(7)
OTHERS = {"validation": [some_images(2, seed=1)], "test": [some_images(2, seed=2)]}


def _dataset(store_uri: str, train: list[Images] | None = None) -> str:
    return published(open_store(store_uri), {"train": train or [TRAIN[:3], TRAIN[3:4], TRAIN[4:]], **OTHERS})


def test_samples_are_read_in_the_order_asked_for(store_uri: str) -> None:
    reader = open_split(_dataset(store_uri), "train")
    assert len(reader) == 7
    for indices in ([0, 1, 2, 3, 4, 5, 6], [6, 0, 3, 3, 2], [4], [], np.array([5, 2], dtype=np.uint64)):
        images = reader.images(indices)
        np.testing.assert_array_equal(images, TRAIN[np.array(indices, dtype=int)])
        assert images.dtype == np.uint8


def test_only_the_cache_that_is_given_is_written_to(store_uri: str, tmp_path: Path) -> None:
    open_split(_dataset(store_uri), "train", tmp_path / "mine")
    assert len(list((tmp_path / "mine" / "proofs").glob("*.json"))) == 3 + 2
    assert not list(default_cache().iterdir())


@pytest.mark.parametrize("host", ["a", "b", "c"])
def test_a_split_of_no_shards_is_opened_on_every_machine(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where to begin is computed from its name."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert open_shards([], (4, 6, 1), open_store(str(tmp_path))) == []


def test_images_are_reduced_to_a_shape_that_is_asked_for(tmp_path: Path) -> None:
    uri = _dataset(str(tmp_path))
    whole = open_split(uri, "train")
    height, width, channels = whole.shape
    small = open_split(uri, "train", shape=(height // 2, width // 2, channels))
    assert small.shape == (height // 2, width // 2, channels)
    expected = [reduced_image(image, small.shape) for image in whole.images(range(7))]
    np.testing.assert_array_equal(small.images(range(7)), np.stack(expected))
    np.testing.assert_array_equal(open_split(uri, "train", shape=whole.shape).images(range(7)), TRAIN)


def test_images_are_copies_that_may_be_changed(tmp_path: Path) -> None:
    reader = open_split(_dataset(str(tmp_path)), "train")
    reader.images([0])[:] = 0
    np.testing.assert_array_equal(reader.images([0]), TRAIN[:1])


def test_labels_and_ids_belong_to_the_samples(tmp_path: Path) -> None:
    reader = open_split(_dataset(str(tmp_path)), "test")
    assert list(reader.sample_ids) == ["0/0.png", "1/1.png"]
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


COUNTING = """
import hashlib, sys
from ddpipe.data.reader import open_split

hashed, file_digest = [], hashlib.file_digest
hashlib.file_digest = lambda *given: hashed.append(given) or file_digest(*given)
pixels = open_split(sys.argv[1], "train").images([6]).sum()
print(len(hashed), pixels)
"""


def _processes(uri: str, cache: Path) -> list[int]:
    """How many shards and columns each of three processes hashes that open the same split at once."""
    environment = os.environ | {"DDPIPE_CACHE": str(cache)}
    command = [sys.executable, "-c", COUNTING, uri]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate()[0].split() for process in started]
    assert [pixels for _, pixels in outputs] == [str(TRAIN[6].sum())] * 3
    return [int(hashed) for hashed, _ in outputs]


def test_several_processes_at_once_fetch_and_hash_each_object_once(proxy: Proxy, tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}")
    proxy.requests.clear()
    assert sum(_processes(uri, tmp_path)) == 3 + 2
    fetches = [request for request in proxy.requests if request.startswith("GET") and "shards" in request]
    assert len(fetches) == 3
    assert sum(_processes(uri, tmp_path)) == 0, "nor do they at the next start"


def test_processes_on_a_shared_folder_hash_each_object_once(tmp_path: Path) -> None:
    uri = _dataset(str(tmp_path / "store"))
    assert sum(_processes(uri, tmp_path / "cache")) == 3 + 2
    assert sum(_processes(uri, tmp_path / "cache")) == 0
    assert sum(_processes(uri, tmp_path / "another-node")) == 3 + 2


def _flip(path: Path, place: int = -1) -> None:
    """Change one byte, as a program or a slip of a person would."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_cached_shard_that_was_damaged_is_fetched_again(
    proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = _dataset(f"s3://{BUCKET}", [TRAIN])
    open_split(uri, "train", tmp_path)
    (copy,) = (tmp_path / "shards").glob("*.npy")
    _flip(copy)
    np.testing.assert_array_equal(open_split(uri, "train", tmp_path).images(range(7)), TRAIN)
    assert "fetched again" in caplog.text
    proxy.requests.clear()
    open_split(uri, "train", tmp_path)
    assert not [request for request in proxy.requests if "shards" in request]


def test_a_cached_shard_cut_short_is_fetched_again(proxy: Proxy, tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}", [TRAIN])
    open_split(uri, "train", tmp_path)
    (copy,) = (tmp_path / "shards").glob("*.npy")
    os.truncate(copy, 100)
    np.testing.assert_array_equal(open_split(uri, "train", tmp_path).images(range(7)), TRAIN)
    assert proxy.requests


def test_a_shard_that_changed_since_it_was_verified_is_refused(tmp_path: Path) -> None:
    """Also at once: no change is hidden by the resolution of the file system's times."""
    uri = _dataset(str(tmp_path), [TRAIN])
    for _ in range(5):
        open_split(uri, "train")
        (shard,) = (
            path for path in (tmp_path / "shards").iterdir() if path.stat().st_size == 128 + TRAIN.size
        )
        _flip(shard)
        with pytest.raises(DatasetError, match="hash"):
            open_split(uri, "train")
        _flip(shard)


@pytest.mark.parametrize("left", ["", "{", "[]", '{"sha256": 1}'])
def test_a_damaged_proof_proves_nothing(left: str, tmp_path: Path) -> None:
    uri = _dataset(str(tmp_path / "store"), [TRAIN])
    open_split(uri, "train", tmp_path)
    whole = {proof: proof.read_text() for proof in (tmp_path / "proofs").glob("*.json")}
    assert len(whole) == 3
    for proof in whole:
        proof.write_text(left)
    open_split(uri, "train", tmp_path)
    assert {proof: proof.read_text() for proof in whole} == whole


def test_a_disk_too_full_for_a_proof_does_not_keep_a_file_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _dataset(str(tmp_path / "store"))

    def write_text(path: Path, _text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", write_text)
    assert len(open_split(uri, "train", tmp_path)) == 7


def test_a_store_on_disk_is_read_without_a_writable_cache(tmp_path: Path) -> None:
    """A claim in a pod whose user has no home."""
    uri = _dataset(str(tmp_path / "store"))
    (tmp_path / "file").touch()
    assert len(open_split(uri, "train", tmp_path / "file" / "cache")) == 7
    for shard in (tmp_path / "store" / "shards").iterdir():
        _flip(shard)
    with pytest.raises(DatasetError, match="hash"):
        open_split(uri, "train", tmp_path / "file" / "cache")


@pytest.mark.usefixtures("s3")
def test_a_cache_that_cannot_take_a_copy_is_named(tmp_path: Path) -> None:
    uri = _dataset(f"s3://{BUCKET}")
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match="DDPIPE_CACHE"):
        open_split(uri, "train", tmp_path / "file" / "cache")


def test_a_proof_has_the_hash_and_what_shows_a_later_write(tmp_path: Path) -> None:
    """In every version of ddpipe the same, or all shards of a machine would be read again."""
    store, (shard, data) = open_store(str(tmp_path)), encode(TRAIN)
    store.write(shard_key(shard), data)
    path = fetching.fetched(store, shard, tmp_path / "cache")
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()
    facts = path.stat()
    assert json.loads((tmp_path / "cache" / "proofs" / f"{name}.json").read_text()) == {
        "sha256": shard.sha256,
        "bytes": len(data),
        "modified": facts.st_mtime_ns,
        "inode": facts.st_ino,
    }


@pytest.mark.parametrize(
    ("age", "waits"), [(0.0, [0.25]), (0.125, [0.25]), (0.25, []), (1.0, []), (-0.125, [])]
)
def test_a_file_is_proved_when_a_later_write_would_show(
    age: float, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (shard, data) = open_store(str(tmp_path)), encode(TRAIN)
    store.write(shard_key(shard), data)
    os.utime(tmp_path / shard_key(shard), (1000, 1000))
    slept: list[float] = []
    clock = SimpleNamespace(time=lambda: 1000 + age, sleep=slept.append)
    monkeypatch.setattr(fetching, "time", clock)
    assert 0.01 <= fetching.TICK <= 0.1, "file systems count in hundredths of a second, and nobody waits long"
    monkeypatch.setattr(fetching, "TICK", 0.25)
    fetching.fetched(store, shard, tmp_path / "cache")
    assert slept == waits


@pytest.mark.parametrize(
    ("given", "taken_at_first"), [({}, 5), ({"ahead": 1}, 2), ({"ahead": 7}, 8)], ids=repr
)
def test_results_come_in_order_and_so_many_items_are_taken_ahead(
    given: dict[str, int], taken_at_first: int
) -> None:
    """Unless it is said, two for each thread."""
    taken = []

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            yield item

    results = prefetched(lambda item: item**2, items(), threads=2, **given)
    assert (next(results), len(taken)) == (0, taken_at_first)
    assert (next(results), len(taken)) == (1, taken_at_first + 1)
    assert list(results) == [item**2 for item in range(2, 20)]


def test_results_are_computed_by_so_many_threads() -> None:
    """One of them does all, also while more is waiting."""
    begun, threads = Event(), set[int]()

    def items() -> Iterator[int]:
        yield from range(4)
        begun.set()

    def function(_item: int) -> None:
        begun.wait()
        threads.add(get_ident())

    assert list(prefetched(function, items(), threads=1, ahead=9)) == [None] * 4
    assert len(threads) == 1


def test_what_nobody_asks_for_any_more_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun is waited for, what waits is given up."""
    closed, done = Event(), list[int]()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            closed.set()
            super().shutdown(wait=wait)

    def function(item: int) -> int:
        if item:
            closed.wait()
        done.append(item)
        return item

    monkeypatch.setattr(reader, "ThreadPoolExecutor", Pool)
    results = prefetched(function, range(20), threads=1, ahead=5)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert len(done) <= 2
