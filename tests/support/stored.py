"""Stored formats, written and read more simply than the product does."""

from __future__ import annotations

import numpy as np

from ddpipe.data.manifest import ShardRef
from ddpipe.data.shards import Images, encode_pixels
from ddpipe.model.checkpoint import Checkpoint, newest
from ddpipe.storage import Store


def encode(images: Images) -> tuple[ShardRef, bytes]:
    """A raw shard's file."""
    return encode_pixels([np.ascontiguousarray(images).tobytes()], images.shape[1:])


def latest(store: Store) -> Checkpoint | None:
    """The content of the newest checkpoint."""
    found = newest(store)
    return found and found[1]
