"""Samples of a split by index, from the store itself or from a cache on this machine.

Of a shard that stays in the store, each image is read by itself, as a part of the shard's file; the head of
a jpeg shard, which each process reads first, has the sizes of its images. Only the
whole file can be compared with the hash in the manifest: a part is not verified, beyond what the connection
and the image decoder notice; copied shards are (fetching.py).
"""

from __future__ import annotations

import logging
import math
import socket
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.cache import default_cache, room
from ddpipe.data.columns import Strings
from ddpipe.data.fetching import fetched
from ddpipe.data.index import Labels, SampleIndex, open_index
from ddpipe.data.manifest import DatasetManifest, Shape, ShardRef, load_manifest, store_of
from ddpipe.data.shards import (
    BLOCK,
    Images,
    Shard,
    cropped,
    damaged,
    open_shard,
    places_in,
    reduced,
    shard_key,
)
from ddpipe.errors import ParameterError
from ddpipe.storage import Store

_log = logging.getLogger(__name__)

AT_ONCE = 8  # shards that are fetched and verified at the same time


def open_split(
    dataset: str | tuple[DatasetManifest, Store],
    split: str,
    cache: Path | None = None,
    shape: Shape | None = None,
) -> SplitReader:
    """Open one split of a dataset version; every shard is verified before the first sample is read.

    Several processes of one machine may open the same split at once: one fetches and verifies each shard, the
    others wait for it; what is unchanged since then is not read again.

    Args:
        dataset: The manifest's URI, or the manifest and the store of its shards.
        split: "train", "validation" or "test".
        cache: Folder on this machine for copies of remote shards, and for proofs of what was verified.
            Default: `$DDPIPE_CACHE`, or ~/.cache/ddpipe.
        shape: Height, width and channels to which images are reduced (default: as the manifest has them).
    """
    manifest, store = (load_manifest(dataset), store_of(dataset)) if isinstance(dataset, str) else dataset
    if split not in manifest.splits:
        raise ParameterError(
            what="a split cannot be opened",
            which=f"dataset {manifest.name}",
            seen=f"it has no split {split!r}",
            do=f"Choose one of: {', '.join(manifest.splits)}.",
        )
    shards: Sequence[Shard] = open_shards(manifest.splits[split].shards, manifest.shape, store, cache)
    if shape and shape != manifest.shape:
        shards = reduced(shards, shape)
    return SplitReader(shape or manifest.shape, open_index(manifest, split, store, cache), shards)


def open_shards(
    shards: Sequence[ShardRef], shape: tuple[int, int, int], store: Store, cache: Path | None = None
) -> list[Shard]:
    """Open shards, verified; if they are more than the cache may take, they stay in the store."""
    folder = cache or default_cache()
    far = _left_in_store(shards, store, folder)

    def opened(number: int) -> Shard:
        shard = shards[number]
        if shard in far:
            return PartShard(store, shard, shape)
        return open_shard(fetched(store, shard, folder), shard, shape)

    # From one in the middle to the end, then from the start: nodes that start together would otherwise all
    # ask for the same object. The processes of a node have one order: one fetches, the others wait for it.
    first = zlib.crc32(socket.gethostname().encode()) % max(1, len(shards))
    order = [*range(first, len(shards)), *range(first)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        by_number = dict(zip(order, pool.map(opened, order), strict=True))
    return [by_number[number] for number in range(len(shards))]


def _left_in_store(shards: Sequence[ShardRef], store: Store, cache: Path) -> set[ShardRef]:
    """The shards that are read in parts: those that are not here, if they are too many to be copied."""
    missing = {
        shard
        for shard in shards
        if store.local_path(shard_key(shard)) is None and not (cache / shard_key(shard)).is_file()
    }
    size = sum(shard.bytes for shard in missing)
    if size <= (free := room(cache)):
        return set()
    _log.warning(
        "%d shards have %.1f GB, the cache %s has room for %.1f GB: their images are read one by one",
        *(len(missing), size / 1e9, cache, free / 1e9),
    )
    return missing


class SplitReader:
    """The samples of one split."""

    def __init__(self, shape: tuple[int, int, int], index: SampleIndex, shards: Sequence[Shard]) -> None:
        self.sample_ids: Strings = index.sample_ids
        self.labels: Labels = index.labels  # read-only, as the groups
        self.groups: Labels | None = index.groups  # equal numbers belong together; None: each is on its own
        self.shape = shape
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards])

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def is_far(self) -> bool:
        """Whether images are read from the store, one by one."""
        return any(isinstance(shard, PartShard) for shard in self._shards)

    def images(self, indices: Sequence[int] | NDArray[np.int64]) -> Images:
        """The images with these indices, in this order: a new array of shape (len(indices), H, W, C)."""
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"indices from {wanted.min()} to {wanted.max()} of {len(self)} samples")
        images = np.empty((len(wanted), *self.shape), dtype=np.uint8)
        places = np.searchsorted(self._ends, wanted, side="right")
        # All shards begin before the first is waited for: of many shards, a batch has one image each.
        begun = [
            (places == place, shard.each(wanted[places == place] - (self._ends[place] - len(shard))))
            for place in np.unique(places)
            for shard in [self._shards[place]]
        ]
        for chosen, some in begun:
            for row, image in zip(np.flatnonzero(chosen).tolist(), some, strict=True):
                images[row] = image
        return images


READERS = 16  # images that a process reads at the same time: as many connections as a store's client keeps

_readers = cache(partial(ThreadPoolExecutor, READERS, thread_name_prefix="part"))

_ENTRY = 9  # bytes of an image's size in a shard's head, which is below 100 MB, and of the space after it


class PartShard:
    """The images of a shard in its store."""

    def __init__(self, store: Store, shard: ShardRef, shape: tuple[int, int, int]) -> None:
        """Find out where the images are, each of this shape (height, width, channels)."""
        self._store, self._shard, self._shape = store, shard, shape
        self._starts, self._sizes = _raw(shard, shape) if shard.kind == "raw" else _jpegs(store, shard)

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


def _raw(shard: ShardRef, shape: tuple[int, int, int]) -> tuple[list[int], list[int]]:
    """Pixels of one size each stand at the end of the file, after a short header."""
    size = math.prod(shape)
    header = shard.bytes - shard.count * size
    if header <= 0:
        raise damaged(shard_key(shard), f"{shard.bytes} bytes are too few for {shard.count} images of {size}")
    return [header + number * size for number in range(shard.count)], [size] * shard.count


def _jpegs(store: Store, shard: ShardRef) -> tuple[list[int], list[int]]:
    """Start and size of each file."""
    head = store.read_range(shard_key(shard), 0, min(shard.bytes, 2 * BLOCK + _ENTRY * shard.count))
    try:
        return places_in(head, shard.count, shard.bytes)
    except (ValueError, IndexError) as error:
        raise damaged(f"{store.uri}/{shard_key(shard)}", str(error)) from error


T = TypeVar("T")
R = TypeVar("R")


def prefetched(
    function: Callable[[T], R], items: Iterable[T], *, threads: int, ahead: int = 0
) -> Iterator[R]:
    """The function's results in the order of the items, at most so many ahead of their use."""
    pool = ThreadPoolExecutor(threads)
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > (ahead or 2 * threads):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
