"""How long many pods take to prepare a data set: which part gets faster, and which does not. Pure functions.

survey     one process lists the source, a page of 1,000 keys at a time
encode     the pods read and encode their shares; CPUs, network and store bound it, and more pods help until
           the store is the limit
publish    one process copies what the pods encoded into the shards that it would have written alone
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddpipe.data.at_scale import Limits

_PAGE, _PAGE_SECONDS = 1000, 0.1
"""Keys in an answer of S3, and how long one takes."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is prepared.

    Attributes:
        images: Their number.
        bytes: Of all files.
        encoded: Bytes of all images as they are stored.
        shards: Number of shards that hold them.
    """

    images: int
    bytes: int
    encoded: int
    shards: int


@dataclass(frozen=True, slots=True)
class Work:
    """What an image costs, in seconds of one CPU.

    Attributes:
        encode: To read, decode, scale and encode it.
        copy: To copy it from one shard to another.
        cpus: CPUs of each pod, and of the process that publishes.
    """

    encode: float
    copy: float
    cpus: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The least number of seconds that each part takes, and what bounds the encoding.

    Attributes:
        survey: Of the source.
        encode: By all pods together.
        publish: Of the version.
        bound: "CPUs", "network" or "store".
    """

    survey: float
    encode: float
    publish: float
    bound: str

    @property
    def total(self) -> float:
        """One part after the other."""
        return self.survey + self.encode + self.publish


def cost(source: Source, nodes: int, work: Work, limits: Limits = Limits()) -> Cost:  # noqa: B008 - a constant
    """What it costs with this many pods; with one, the process that surveys encodes and publishes at once."""
    bounds = {
        "CPUs": source.images * work.encode / work.cpus / nodes,
        "network": (source.bytes + source.encoded) / limits.bandwidth / nodes,
        "store": source.images / limits.requests,
    }
    bound = max(bounds, key=bounds.__getitem__)
    publish = max(
        source.images * work.copy / work.cpus,
        2 * source.encoded / limits.bandwidth,
        source.shards / limits.requests,
    )
    survey = math.ceil(source.images / _PAGE) * _PAGE_SECONDS
    return Cost(survey, bounds[bound], publish if nodes > 1 else 0.0, bound)
