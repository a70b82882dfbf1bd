"""Raw shards: the same images give the same file, and a damaged file is refused."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import some_images

from ddpipe.data.shards import encode, open_shard, verify
from ddpipe.errors import DatasetError

SHAPE = (4, 6, 1)


def test_images_come_back_memory_mapped(tmp_path: Path) -> None:
    images = some_images(5)
    shard, data = encode(images)
    (tmp_path / "s.npy").write_bytes(data)
    opened = open_shard(tmp_path / "s.npy", shard, SHAPE)
    assert isinstance(opened, np.memmap)
    assert not opened.flags.writeable
    np.testing.assert_array_equal(opened, images)


def test_the_same_images_give_the_same_file() -> None:
    images = some_images(5)
    assert encode(images) == encode(np.asfortranarray(images))


def test_a_shard_knows_its_file() -> None:
    shard, data = encode(some_images(5))
    assert (shard.count, shard.bytes, shard.kind) == (5, len(data), "raw")
    assert shard.sha256 == hashlib.sha256(data).hexdigest()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    shard, data = encode(some_images(5))
    path = tmp_path / "s.npy"
    path.write_bytes(data)
    verify(path, shard)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DatasetError, match=r"s\.npy"):
        verify(path, shard)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", os.urandom(300)])
def test_a_file_that_is_no_array_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.npy").write_bytes(content)
    with pytest.raises(DatasetError, match="damaged"):
        open_shard(tmp_path / "s.npy", encode(some_images(5))[0], SHAPE)


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match="damaged"):
        open_shard(tmp_path / "s.npy", encode(some_images(5))[0], SHAPE)


def test_other_images_than_promised_are_refused(tmp_path: Path) -> None:
    shard, data = encode(some_images(5))
    (tmp_path / "s.npy").write_bytes(data)
    with pytest.raises(DatasetError, match="the manifest says"):
        open_shard(tmp_path / "s.npy", replace(shard, count=6), SHAPE)
    np.save(tmp_path / "f.npy", some_images(5).astype(np.float32))
    with pytest.raises(DatasetError, match="float32"):
        open_shard(tmp_path / "f.npy", shard, SHAPE)
