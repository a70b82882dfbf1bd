"""Which images of two dataset versions have one name and other pixels.

Only what may differ is read: an image at the same place of the same shard is the same.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from ddpipe.data.cache import default_cache
from ddpipe.data.fetching import fetched
from ddpipe.data.index import open_index
from ddpipe.data.manifest import DatasetManifest, ShardRef
from ddpipe.data.shards import Shard, open_shard
from ddpipe.storage import Store

Opened = tuple[DatasetManifest, Store]
"""A dataset version, and the store of its shards."""

Place = tuple[ShardRef, int]
"""A shard, and the index of an image in it."""

AT_ONCE = 64
"""Images of each version that are held in memory."""


def changed_images(old: Opened, new: Opened, cache: Path | None = None) -> tuple[str, ...]:
    """Ids of the samples that both versions have, with different pixels."""
    before, after = _places(*old, cache), _places(*new, cache)
    both = [name for name in before if name in after]
    if old[0].shape != new[0].shape:
        return tuple(sorted(both))
    pairs: dict[tuple[ShardRef, ShardRef], list[str]] = defaultdict(list)
    for name in both:
        if before[name] != after[name]:
            pairs[before[name][0], after[name][0]].append(name)
    folder = cache or default_cache()

    @lru_cache(AT_ONCE)
    def opened(version: int, shard: ShardRef) -> Shard:
        manifest, store = (old, new)[version]
        return open_shard(fetched(store, shard, folder), shard, manifest.shape)

    changed: list[str] = []
    for (one, other), names in pairs.items():
        for some in (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)):
            first = opened(0, one).each(np.array([before[name][1] for name in some]))
            second = opened(1, other).each(np.array([after[name][1] for name in some]))
            changed += [
                name for name, a, b in zip(some, first, second, strict=True) if not np.array_equal(a, b)
            ]
    return tuple(sorted(changed))


def _places(manifest: DatasetManifest, store: Store, cache: Path | None) -> dict[str, Place]:
    """Where the image of each sample is."""
    return {
        name: place
        for part, split in manifest.splits.items()
        for name, place in zip(
            open_index(manifest, part, store, cache).sample_ids,
            ((shard, index) for shard in split.shards for index in range(shard.count)),
            strict=True,
        )
    }
