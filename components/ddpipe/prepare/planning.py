"""Which shards of earlier prepares are used again, and which samples have to be read and encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddpipe.data import shards
from ddpipe.data.columns import Rows
from ddpipe.prepare.encoding import Encoding
from ddpipe.prepare.entries import DIGEST, Entry
from ddpipe.sources.samples import Finder, Samples
from ddpipe.storage import Store


class Known:
    """What is known about the samples' files, by row; `there` says of which anything is."""

    def __init__(self, count: int) -> None:
        self.there = np.zeros(count, np.bool_)
        self.sha256 = np.zeros(count, DIGEST)
        self.shapes = np.zeros((count, 3), np.uint32)
        self.depths = np.zeros(count, np.uint8)

    def note(self, rows: Rows | int, sha256: ArrayLike, shapes: ArrayLike, depths: ArrayLike) -> None:
        """Record facts about a file, or about many: sha256, shape (rows,), shapes, (rows, 3), and depths."""
        self.sha256[rows], self.shapes[rows], self.depths[rows] = sha256, shapes, depths
        self.there[rows] = True


@dataclass(frozen=True, slots=True)
class Stored:
    """A shard whose images can be used."""

    entry: Entry
    rows: Rows  # of each of its images among the samples; -1: that sample no longer exists
    scratch: Store | None = None  # where it is if it is no shard of the dataset: only its images are used


def located(entries: Sequence[Entry], samples: Samples) -> list[Stored]:
    """Earlier shards, with the row of each of their images among the samples."""
    find = Finder(samples.ids) if entries else None
    return [Stored(entry, find.rows(entry.members.ids)) for entry in entries if find]


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """How the samples of one split get into shards."""

    kept: tuple[Stored, ...]  # reused whole
    broken: frozenset[str]  # hashes of those of them that are lost or damaged: their samples are read again
    rows: Rows  # the samples of the new shards, in their order
    origins: NDArray[np.int32]  # for each of them, the shard of `shelf` that has its image; -1: it is read
    places: NDArray[np.int32]  # for each of them, the index of its image in that shard
    shelf: tuple[Stored, ...] = ()

    @classmethod
    def of(cls, rows: Rows) -> PackingPlan:
        """Read and encode all of these samples."""
        return cls((), frozenset(), rows, np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.int32))

    @property
    def unread(self) -> Rows:
        """The samples that have to be read and encoded."""
        again = [stored.rows for stored in self.kept if stored.entry.shard.sha256 in self.broken]
        return np.concatenate([self.rows[self.origins < 0], *again])

    @property
    def encoded(self) -> int:
        """Number of samples that are encoded for this plan, by this process or by helpers."""
        helped = np.array([stored.scratch is not None for stored in self.shelf], np.bool_)
        from_helpers = helped[self.origins[self.origins >= 0]].sum() if len(helped) else 0
        return len(self.unread) + int(from_helpers)

    @property
    def taken(self) -> int:
        """Number of samples that are copied from other shards."""
        return int((self.origins >= 0).sum())

    def take(self, number: int) -> tuple[Stored, int] | None:
        """The shard, and the place in it, from which the image at this index of `rows` is copied."""
        origin = int(self.origins[number])
        return None if origin < 0 else (self.shelf[origin], int(self.places[number]))


def planned(
    rows: Rows, known: Known, stored: Iterable[Stored], encoding: Encoding, broken: Collection[str]
) -> PackingPlan:
    """Reuse shards all of whose images are wanted; new images are merged with small ones."""
    wanted = np.zeros(len(known.there), np.bool_)
    wanted[rows] = True
    wanted &= known.there
    shelf = sorted(
        (one for one in stored if one.entry.encoding == encoding.facts),
        key=lambda one: (-one.entry.shard.count, one.entry.shard.sha256),
    )
    current = [
        (one.rows >= 0) & wanted[one.rows] & (known.sha256[one.rows] == one.entry.members.sha256)
        for one in shelf
    ]
    whole = [one for one, fits in zip(shelf, current, strict=True) if fits.all() and one.scratch is None]
    kept, covered = _apart(whole, len(wanted))
    if not covered[rows].all():
        large = [one for one in kept if one.entry.shard.bytes * 2 >= shards.SHARD_BYTES]
        kept, covered = _apart(large, len(wanted))
    new = rows[~covered[rows]]
    origins, places = np.full(len(new), -1, np.int32), np.zeros(len(new), np.int32)
    for number, (one, fits) in enumerate(zip(shelf, current, strict=True)):
        if len(new) and one.entry.shard.sha256 not in broken:
            usable = np.flatnonzero(fits & ~covered[one.rows])
            target = np.searchsorted(new, one.rows[usable])
            origins[target], places[target] = number, usable
    return PackingPlan(
        kept=tuple(sorted(kept, key=lambda one: one.rows[0])),
        broken=frozenset(one.entry.shard.sha256 for one in kept) & frozenset(broken),
        rows=new,
        origins=origins,
        places=places,
        shelf=tuple(shelf),
    )


def _apart(candidates: Iterable[Stored], samples: int) -> tuple[list[Stored], NDArray[np.bool_]]:
    """Shards that have no image in common, and which samples they hold: (samples,)."""
    kept: list[Stored] = []
    covered = np.zeros(samples, np.bool_)
    for one in candidates:
        if not covered[one.rows].any():
            kept.append(one)
            covered[one.rows] = True
    return kept, covered
