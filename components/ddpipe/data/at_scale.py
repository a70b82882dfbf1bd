"""How a split is read by many nodes at once: which node fetches what, in how many requests, how fast.

copied       the split fits into the cache: each node fetches every shard once, then reads from its disk
in parts     it does not: nothing is copied, and each image is a request for a part of its shard, so that a
             node reads its share of an epoch only

The order of samples is one permutation of the whole split, so a node needs images of every shard. That is
why a node that copies needs all of the split, and why one that does not reads single images. Pure functions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How a node reads a split."""

    COPIED = "copied"
    PARTS = "in parts"


@dataclass(frozen=True, slots=True)
class Size:
    """How large a split is.

    Attributes:
        bytes: Of all shards.
        shards: Their number.
        images: The number of samples.
    """

    bytes: int
    shards: int
    images: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds reading.

    Attributes:
        requests: GET requests that the store answers per second. S3 publishes 5,500 for each partition of a
            bucket's keys, and makes more partitions of a busy bucket, but only gradually.
        bandwidth: Bytes per second of a node's network.
    """

    requests: float = 5500
    bandwidth: float = 10e9 / 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What reading costs; seconds are the least that the limits allow.

    Attributes:
        way: How the nodes read.
        start_bytes: Of each node, before its first step.
        start_requests: Of all nodes together.
        start_seconds: How long that takes.
        epoch_bytes: Of each node, in each epoch.
        epoch_requests: Of all nodes together.
        epoch_seconds: How long an epoch takes at least.
    """

    way: Way
    start_bytes: int
    start_requests: int
    start_seconds: float
    epoch_bytes: int
    epoch_requests: int
    epoch_seconds: float


def way(missing: int, room: int) -> Way:
    """How a node reads a split."""
    return Way.COPIED if missing <= room else Way.PARTS


def cost(split: Size, nodes: int, room: int, limits: Limits = Limits()) -> Cost:
    """What it costs that all nodes start at once with empty caches, and what each epoch costs then."""

    def seconds(requests: int, amount: int) -> float:
        return max(requests / limits.requests, amount / limits.bandwidth)

    chosen, every = way(split.bytes, room), nodes * split.shards
    if chosen is Way.COPIED:
        return Cost(chosen, split.bytes, every, seconds(every, split.bytes), 0, 0, 0.0)
    share = -(-split.bytes // nodes)
    # At the start a node reads the head of each shard, which lists its images: a few KB.
    return Cost(chosen, 0, every, seconds(every, 0), share, split.images, seconds(split.images, share))


def fetch_order(shards: int, node: str) -> list[int]:
    """The order in which a node fetches shards: from one in the middle to the end, then from the start.

    Nodes that start together would otherwise all ask for the same object. All processes of a node have the
    same order: one of them fetches a shard while the others wait for it.
    """
    first = zlib.crc32(node.encode()) % shards if shards else 0
    return [*range(first, shards), *range(first)]
