"""Writes shards: reuses stored images, reads and encodes the others on all CPUs.

At most a few shards are in memory: threads read and encode a little ahead of the one that packs, and one
shard is written while the next one fills. Threads suffice, because decoder, filter and encoder all release
Python's lock (measured: as fast as processes), and they share one pool of connections to the store.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ddpipe.data import shards
from ddpipe.data.columns import Rows, text
from ddpipe.data.manifest import Shape
from ddpipe.data.reader import prefetched
from ddpipe.data.shards import shard_key, verify
from ddpipe.errors import NoSuchObject
from ddpipe.prepare.encoding import Encoding, Moments, Raw, pixel_moments
from ddpipe.prepare.entries import DIGEST, Entry, Members, write_entry
from ddpipe.prepare.planning import Known, PackingPlan, Stored
from ddpipe.processes.machine import cpus, give_memory_back, keep_memory
from ddpipe.processes.progress import progress_bar
from ddpipe.sources import Source, Survey, Unreadable
from ddpipe.sources.images import Probed, probe
from ddpipe.sources.sample import Sample
from ddpipe.storage import Store

log = logging.getLogger(__name__)

R = TypeVar("R")

REMOTE_READERS = 16  # minimum number of threads that read from a bucket: they mostly wait
HELPED = 32  # shards of helpers that are open at the same time: threads read ahead, and shares meet
BATCH = 32  # samples that a thread takes at a time


class Packed(NamedTuple):
    """An encoded image and its facts; see `ddpipe.prepare.entries.Members`."""

    row: int
    sha256: bytes
    shape: Shape
    depth: int
    moments: Moments
    phash: str
    data: bytes


class Packer:
    """Reads, encodes and stores images; one packer for a whole prepare."""

    def __init__(self, source: Source, survey: Survey, store: Store, name: str, *, remote: bool) -> None:
        self.samples = survey.samples
        self.known = Known(len(survey.samples))
        self.problems: dict[int, str] = {}  # why samples cannot be read, by their rows
        self._probed = Probed(survey.shape, 0) if survey.shape else None
        self._alike: dict[Probed, Probed] = {}  # one object for all images of one shape
        self._source, self.store, self._name = source, store, name
        self._threads = max(cpus(), REMOTE_READERS) if remote else cpus()

    def inspect(self, rows: Rows) -> None:
        """Hash files and read the headers of their images."""
        with progress_bar("inspecting", len(rows)) as progress:
            for row, (digest, probed) in self._good(self._inspect, rows, progress):
                self.known.note(row, digest, probed.shape, probed.depth)

    def pack(
        self, plans: Mapping[str, PackingPlan], encoding: Encoding, *, keep_going: bool
    ) -> dict[str, list[Stored]]:
        """Carry out plans, each split after the other."""

        def may_store() -> bool:
            return keep_going or not self.problems

        give_memory_back()
        keep_memory()
        total = sum(plan.taken + plan.encoded for plan in plans.values())
        stored, store = {}, partial(self._stored, encoding)
        with TemporaryDirectory() as folder, progress_bar("encoding", total) as progress:
            opened = OpenedShards(self.store, encoding, Path(folder))
            for split, plan in plans.items():
                kept = []
                for one in plan.kept:
                    if one.entry.shard.sha256 in plan.broken:
                        read = partial(self._read, encoding)
                        content = [part for _, part in self._good(read, one.rows, progress)]
                        kept += [store(content)] if content and may_store() else []
                    else:
                        kept.append(self._restamped(one))
                encode = partial(self._encode, encoding, plan, opened)
                good = (part for _, part in self._good(encode, plan.rows, progress))
                contents = (content for content in _cut(part for part in good if may_store()) if may_store())
                stored[split] = [*kept, *prefetched(store, contents, threads=1, ahead=1)]
                give_memory_back()
        return stored

    def _restamped(self, stored: Stored) -> Stored:
        """The shard with the current stamps of its files, so that the next prepare need not read them."""
        entry, stamps = stored.entry, self.samples.stamps[stored.rows]
        if np.array_equal(entry.members.stamps, stamps):
            return stored
        entry = replace(entry, members=replace(entry.members, stamps=stamps))
        write_entry(self.store, self._name, entry)
        return Stored(entry, stored.rows)

    def _good(
        self, function: Callable[[int, int, Sample], R], rows: Rows, progress: tqdm[NoReturn]
    ) -> Iterator[tuple[int, R]]:
        """Results for samples, in their order, each with its row; an `Unreadable` one becomes a problem."""

        def outcomes(start: int) -> list[tuple[int, R | Unreadable]]:
            some, found = rows[start : start + BATCH], list[tuple[int, R | Unreadable]]()
            numbered = zip(some.tolist(), self.samples.take(some), strict=True)
            for place, (row, sample) in enumerate(numbered, start):
                try:
                    found.append((row, function(place, row, sample)))
                except Unreadable as error:
                    found.append((row, error))
            return found

        batches = prefetched(outcomes, range(0, len(rows), BATCH), threads=self._threads)
        for row, outcome in chain.from_iterable(batches):
            progress.update()
            if isinstance(outcome, Unreadable):
                self.problems[row] = str(outcome)
            else:
                yield row, outcome

    def _inspect(self, _place: int, _row: int, sample: Sample) -> tuple[bytes, Probed]:
        data = self._source.read(sample)
        return hashlib.sha256(data).digest(), self._probed or probe(data)

    def _encode(
        self,
        encoding: Encoding,
        plan: PackingPlan,
        opened: OpenedShards,
        place: int,
        row: int,
        sample: Sample,
    ) -> Packed:
        if not (take := plan.take(place)):
            return self._read(encoding, place, row, sample)
        try:
            data = opened.part(*take)
        except (NoSuchObject, FileNotFoundError):
            if not take[0].scratch:
                raise
            # Another prepare of the same data was faster, and has removed what the helpers encoded.
            return self._read(encoding, place, row, sample)
        members, at = take[0].entry.members, take[1]
        shape, moments = tuple(members.shapes[at].tolist()), tuple(members.moments[at].tolist())
        depth, phash = int(members.depths[at]), members.phashes[at].decode()
        return Packed(row, members.sha256[at], shape, depth, moments, phash, data)

    def _read(self, encoding: Encoding, _place: int, row: int, sample: Sample) -> Packed:
        data = self._source.read(sample)
        encoded = encoding.encode(data)
        if self.known.there[row]:
            height, width, channels = self.known.shapes[row].tolist()
            probed = Probed((height, width, channels), int(self.known.depths[row]))
        else:
            probed = self._probed or probe(data)
        probed = self._alike.setdefault(probed, probed)
        return Packed(
            row, hashlib.sha256(data).digest(), *probed, encoded.moments, encoded.phash, encoded.data
        )

    def _stored(self, encoding: Encoding, content: list[Packed]) -> Stored:
        """Write a shard, perhaps over a damaged or an old one, then its entry; empties `content`."""
        rows, parts = np.array([part.row for part in content]), [part.data for part in content]
        members = Members(
            ids=self.samples.ids[rows],
            stamps=self.samples.stamps[rows],
            sha256=np.array([part.sha256 for part in content], DIGEST),
            shapes=np.array([part.shape for part in content], np.uint32),
            depths=np.array([part.depth for part in content], np.uint8),
            moments=pixel_moments(parts, encoding.shape)
            if isinstance(encoding, Raw)
            else _as_wide([part.moments for part in content]),
            phashes=text(part.phash for part in content),
        )
        content.clear()  # while this shard is written, the next one fills
        shard, data = encoding.pack(parts)
        parts.clear()
        self.store.write(shard_key(shard), data)
        entry = Entry(shard, encoding.facts, members)
        write_entry(self.store, self._name, entry)
        return Stored(entry, rows)


class OpenedShards:
    """Shards opened when the first image is copied from them; of those of helpers only a few are open."""

    def __init__(self, store: Store, encoding: Encoding, folder: Path) -> None:
        self._store, self._encoding, self._folder = store, encoding, folder
        self._opened: dict[str, Callable[[int], bytes]] = {}
        self._helped: deque[str] = deque()
        self._lock = Lock()

    def part(self, stored: Stored, place: int) -> bytes:
        """An encoded image; raises `DatasetError` if its shard is damaged."""
        with self._lock:
            part = self._opened.get(stored.entry.shard.sha256) or self._open(stored)
        return part(place)

    def _open(self, stored: Stored) -> Callable[[int], bytes]:
        shard, store = stored.entry.shard, stored.scratch or self._store
        path = store.local_path(shard_key(shard))
        copy = self._folder / shard.sha256
        if path is None:
            store.download(shard_key(shard), copy)
        verify(path or copy, shard)
        part = self._opened[shard.sha256] = self._encoding.unpack(path or copy, shard)
        copy.unlink(missing_ok=True)  # what is mapped stays readable
        if stored.scratch:
            self._helped.append(shard.sha256)
            if len(self._helped) > HELPED:
                self._opened.pop(self._helped.popleft(), None)
        return part


def _cut(parts: Iterable[Packed]) -> Iterator[list[Packed]]:
    """Group images into shards."""
    content: list[Packed] = []
    size = 0
    for part in parts:
        if content and size + len(part.data) > shards.SHARD_BYTES:
            yield content
            content, size = [], 0
        content.append(part)
        size += len(part.data)
    if content:
        yield content


def _as_wide(moments: Sequence[Moments]) -> NDArray[np.uint64]:
    """Rows of one width, uint64: a gray image has the same moments in every channel."""
    widest = max(map(len, moments))
    return np.array([row if len(row) == widest else (row[0], *3 * row[1:]) for row in moments], np.uint64)
