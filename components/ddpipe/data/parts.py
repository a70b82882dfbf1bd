"""Shards that stay in the store: each image is read by itself, as a part of its shard's file.

    <cache>/heads/<sha256>      the head of a jpeg shard, which lists the sizes of its images

Only the whole file can be compared with the hash in the manifest. So a part is not verified, beyond what the
connection and the image decoder notice; copied shards are (fetching.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.cache import locked
from ddpipe.data.manifest import ShardRef
from ddpipe.data.shards import BLOCK, Images, cropped, damaged, places_in, shard_key
from ddpipe.errors import NotWritable
from ddpipe.storage import Store

READERS = 16
"""Images that a process reads at the same time: as many connections as a store's client keeps."""

_ENTRY = 9
"""Bytes of an image's size in the head of a shard, which is less than 100 MB, and of the space after it."""


class PartShard:
    """The images of a shard in its store."""

    def __init__(self, store: Store, shard: ShardRef, shape: tuple[int, int, int], cache: Path) -> None:
        """Find out where the images are.

        Args:
            store: Where the shard is.
            shard: What the manifest says of it.
            shape: Height, width and channels of every image.
            cache: Folder on this machine for heads.
        """
        self._store, self._shard, self._shape = store, shard, shape
        self._starts, self._sizes = _raw(shard, shape) if shard.kind == "raw" else _jpegs(store, shard, cache)

    def __len__(self) -> int:
        return self._shard.count

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """The images with these indices, shape (n,), read and decoded by threads."""
        return _readers().map(self._image, indices.tolist())

    def _image(self, index: int) -> Images:
        data = self._store.read_range(shard_key(self._shard), self._starts[index], self._sizes[index])
        if self._shard.kind == "raw":
            return np.frombuffer(data, np.uint8).reshape(self._shape)
        try:
            return cropped(data, self._shape)
        except ValueError as error:
            raise damaged(f"{self._store.uri}/{shard_key(self._shard)}", f"image {index}: {error}") from error


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, thread_name_prefix="part")


def _raw(shard: ShardRef, shape: tuple[int, int, int]) -> tuple[list[int], list[int]]:
    """Pixels of one size each stand at the end of the file, after a short header."""
    size = math.prod(shape)
    header = shard.bytes - shard.count * size
    if header <= 0:
        raise damaged(shard_key(shard), f"{shard.bytes} bytes are too few for {shard.count} images of {size}")
    return [header + number * size for number in range(shard.count)], [size] * shard.count


def _jpegs(store: Store, shard: ShardRef, folder: Path) -> tuple[list[int], list[int]]:
    """Start and size of each file; the head is read once for all processes of the machine."""
    path = folder / "heads" / shard.sha256
    try:
        with locked(path.with_suffix(".lock")):
            with suppress(OSError, ValueError):  # none yet, or its writer died
                return _checked(path.read_bytes(), shard)
            head = _head(store, shard)
            found = _found(head, shard, store)
            with suppress(OSError):  # a full disk: it is read again
                incoming = path.with_suffix(f".{os.getpid()}")
                incoming.write_bytes(head)
                incoming.replace(path)
            return found
    except NotWritable:
        return _found(_head(store, shard), shard, store)


def _head(store: Store, shard: ShardRef) -> bytes:
    return store.read_range(shard_key(shard), 0, min(shard.bytes, 2 * BLOCK + _ENTRY * shard.count))


def _found(head: bytes, shard: ShardRef, store: Store) -> tuple[list[int], list[int]]:
    try:
        return _checked(head, shard)
    except (ValueError, IndexError) as error:
        raise damaged(f"{store.uri}/{shard_key(shard)}", str(error)) from error


def _checked(head: bytes, shard: ShardRef) -> tuple[list[int], list[int]]:
    """The places that a head lists, if they are as many as the manifest says and within the shard."""
    starts, sizes = places_in(head)
    if len(sizes) != shard.count or min(sizes) < 0 or starts[-1] + sizes[-1] > shard.bytes:
        raise ValueError(f"it lists {len(sizes)} images, the manifest {shard.count}")
    return starts, sizes
