"""From samples to shards: what is there is taken over, the rest is read and encoded on all CPUs.

Nothing holds more than a few shards in memory: threads read and encode a little ahead of the one that packs,
and one shard is written while the next one fills. Threads are enough, as decoder, filter and encoder all let
go of Python's lock (measured: as fast as processes), and share one pool of connections to the store.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NoReturn, TypeVar

from tqdm import tqdm

from ddpipe.cpus import cpus
from ddpipe.data.manifest import ShardRef
from ddpipe.data.prefetch import prefetched
from ddpipe.data.shards import SHARD_BYTES, shard_key, verify
from ddpipe.prepare.encoding import Encoding
from ddpipe.prepare.images import Shape, probe
from ddpipe.prepare.index import Entry, Member, write_entry
from ddpipe.prepare.sources import Sample, Source, Unreadable
from ddpipe.process import keep_memory
from ddpipe.storage import Store

log = logging.getLogger(__name__)

R = TypeVar("R")

Content = Sequence[tuple[Member, bytes]]
"""The images of a shard, encoded, and what is known of them."""

REMOTE_READERS = 16
"""Threads that at least read from a bucket: they mostly wait for it."""

BATCH = 16
"""Samples that a thread takes at a time."""

TOLD_EVERY = 15.0
"""Seconds between two lines about the progress where there is no terminal for a bar."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a sample's file.

    Attributes:
        id: Of the sample.
        stamp: Of the file when it was read.
        sha256: Of its content, in hex.
        shape: Of its image.
        depth: Of its image, see `ddpipe.prepare.images.Probed`.
    """

    id: str
    stamp: str
    sha256: str
    shape: Shape
    depth: int


@dataclass(frozen=True, slots=True)
class Take:
    """An image that a shard already holds."""

    shard: ShardRef
    index: int
    member: Member


@dataclass(frozen=True, slots=True)
class Plan:
    """How the samples of one split come into shards.

    Attributes:
        kept: Shards that stay as they are.
        broken: The samples of those of them that are lost or damaged, by hash; they have to be read.
        taken: Encoded images that move from other shards, by sample id.
        samples: What the new shards hold, in their order; what is not in `taken` has to be read.
    """

    kept: tuple[Entry, ...]
    broken: Mapping[str, tuple[Sample, ...]]
    taken: Mapping[str, Take]
    samples: tuple[Sample, ...]

    @property
    def encoded(self) -> int:
        """How many samples have to be read and encoded."""
        return len(self.samples) - len(self.taken) + sum(map(len, self.broken.values()))


def planned(
    samples: Sequence[Sample],
    known: Mapping[str, Known],
    entries: Iterable[Entry],
    encoding: Encoding,
    broken: Collection[str],
) -> Plan:
    """Take over what earlier prepares stored with the same encoding from the same content.

    A shard stays if all of its images are wanted. If something is new, small shards do not stay but are
    merged with it: otherwise every small change would leave a small shard behind, for ever.

    Args:
        samples: Of the split.
        known: What is known of the files, by sample id.
        entries: What earlier prepares stored.
        encoding: How images are kept now.
        broken: Hashes of shards that are lost or damaged. Where such a shard would stay, it is made again
            from the same samples, so that this and every other version of it is whole again.
    """
    wanted = {sample.id: sample for sample in samples}

    def is_current(member: Member) -> bool:
        fact = known.get(member.id)
        return member.id in wanted and fact is not None and fact.sha256 == member.sha256

    fitting = sorted(
        (entry for entry in entries if entry.encoding == encoding.facts),
        key=lambda entry: (-entry.shard.count, entry.shard.sha256),
    )
    whole = [entry for entry in fitting if all(map(is_current, entry.members))]
    kept, covered = _apart(whole)
    if covered != wanted.keys():
        kept, covered = _apart([entry for entry in kept if entry.shard.bytes * 2 >= SHARD_BYTES])
    taken = {
        member.id: Take(entry.shard, index, member)
        for entry in fitting
        if entry.shard.sha256 not in broken
        for index, member in enumerate(entry.members)
        if member.id not in covered and is_current(member)
    }
    order = {sample.id: place for place, sample in enumerate(samples)}
    return Plan(
        kept=tuple(sorted(kept, key=lambda entry: order[entry.members[0].id])),
        broken={
            entry.shard.sha256: tuple(wanted[member.id] for member in entry.members)
            for entry in kept
            if entry.shard.sha256 in broken
        },
        taken=taken,
        samples=tuple(sample for sample in samples if sample.id not in covered),
    )


def _apart(entries: Iterable[Entry]) -> tuple[list[Entry], set[str]]:
    """Shards that have no image in common, and all of their images."""
    kept: list[Entry] = []
    covered: set[str] = set()
    for entry in entries:
        ids = {member.id for member in entry.members}
        if ids.isdisjoint(covered):
            kept.append(entry)
            covered |= ids
    return kept, covered


class Packer:
    """Reads, encodes and stores; one for a whole prepare.

    Attributes:
        known: What is known of the files, by sample id; grows as they are looked at.
        problems: Why samples cannot be read, by sample id.
    """

    def __init__(self, source: Source, store: Store, name: str, *, remote: bool) -> None:
        self.known: dict[str, Known] = {}
        self.problems: dict[str, str] = {}
        self._source, self._store, self._name = source, store, name
        self._threads = max(cpus(), REMOTE_READERS) if remote else cpus()

    def inspect(self, samples: Sequence[Sample]) -> None:
        """Hash files and read the headers of their images."""
        with _progress("inspecting", len(samples)) as progress:
            for known in self._good(self._inspect, samples, progress):
                self.known[known.id] = known

    def pack(
        self, plans: Mapping[str, Plan], encoding: Encoding, *, keep_going: bool
    ) -> dict[str, list[Entry]]:
        """Carry out plans, each split after the other.

        Args:
            plans: By split.
            encoding: Of the images.
            keep_going: Store also after a problem; else what follows is only checked.

        Returns:
            The shards of each split.
        """

        def may_store() -> bool:
            return keep_going or not self.problems

        def store(content: Content) -> Entry:
            return self._stored(encoding, content)

        keep_memory()
        total = sum(len(plan.taken) + plan.encoded for plan in plans.values())
        entries = {}
        with TemporaryDirectory() as folder, _progress("encoding", total) as progress:
            stored = StoredShards(self._store, encoding, Path(folder))
            for split, plan in plans.items():
                encode = partial(self._encode, encoding, plan, stored)
                kept = []
                for entry in plan.kept:
                    if again := plan.broken.get(entry.shard.sha256):
                        content = list(self._good(encode, again, progress))
                        kept += [store(content)] if content and may_store() else []
                    else:
                        kept.append(self._restamped(entry))
                good = self._good(encode, plan.samples, progress)
                contents = (content for content in _cut(part for part in good if may_store()) if may_store())
                entries[split] = [*kept, *prefetched(store, contents, threads=1)]
        return entries

    def _restamped(self, entry: Entry) -> Entry:
        """The entry with the stamps that its files have now, so that they need not be read again."""
        members = tuple(replace(member, stamp=self.known[member.id].stamp) for member in entry.members)
        if members != entry.members:
            entry = replace(entry, members=members)
            write_entry(self._store, self._name, entry)
        return entry

    def _good(
        self, function: Callable[[Sample], R], samples: Sequence[Sample], progress: tqdm[NoReturn]
    ) -> Iterator[R]:
        """The function's results in the order of the samples; `Unreadable` becomes a problem."""

        def outcomes(batch: Sequence[Sample]) -> list[R | Unreadable]:
            return [_outcome(function, sample) for sample in batch]

        batches = (samples[start : start + BATCH] for start in range(0, len(samples), BATCH))
        results = chain.from_iterable(prefetched(outcomes, batches, threads=self._threads))
        for sample, outcome in zip(samples, results, strict=True):
            progress.update()
            if isinstance(outcome, Unreadable):
                self.problems[sample.id] = str(outcome)
            else:
                yield outcome

    def _inspect(self, sample: Sample) -> Known:
        data = self._source.read(sample)
        return Known(sample.id, sample.stamp, hashlib.sha256(data).hexdigest(), *probe(data))

    def _encode(
        self, encoding: Encoding, plan: Plan, stored: StoredShards, sample: Sample
    ) -> tuple[Member, bytes]:
        if take := plan.taken.get(sample.id):
            return replace(take.member, stamp=sample.stamp), stored.part(take)
        data = self._source.read(sample)
        encoded = encoding.encode(data)
        known = self.known.get(sample.id)
        shape, depth = (known.shape, known.depth) if known else probe(data)
        sha256 = hashlib.sha256(data).hexdigest()
        member = Member(sample.id, sample.stamp, sha256, shape, encoded.moments, encoded.phash, depth)
        return member, encoded.data

    def _stored(self, encoding: Encoding, content: Content) -> Entry:
        """Write a shard, then what is known of it.

        Also if there is one of this name: it may be damaged, or so old that it is about to be cleaned up.
        """
        shard, data = encoding.pack([part for _, part in content])
        self._store.write(shard_key(shard), data)
        entry = Entry(shard, encoding.facts, tuple(member for member, _ in content))
        write_entry(self._store, self._name, entry)
        return entry


class StoredShards:
    """Shards of earlier prepares, opened as images are taken from them."""

    def __init__(self, store: Store, encoding: Encoding, folder: Path) -> None:
        self._store, self._encoding, self._folder = store, encoding, folder
        self._opened: dict[str, Callable[[int], bytes]] = {}
        self._lock = Lock()

    def part(self, take: Take) -> bytes:
        """An encoded image; raises `DatasetError` if its shard is damaged."""
        with self._lock:
            if take.shard.sha256 not in self._opened:
                self._opened[take.shard.sha256] = self._encoding.unpack(self._path(take.shard), take.shard)
        return self._opened[take.shard.sha256](take.index)

    def _path(self, shard: ShardRef) -> Path:
        path = self._store.local_path(shard_key(shard))
        if path is None:
            path = self._folder / shard.sha256
            self._store.download(shard_key(shard), path)
        verify(path, shard)
        return path


def _outcome(function: Callable[[Sample], R], sample: Sample) -> R | Unreadable:
    try:
        return function(sample)
    except Unreadable as error:
        return error


def _cut(parts: Iterable[tuple[Member, bytes]]) -> Iterator[Content]:
    """As many images as make a shard."""
    content: list[tuple[Member, bytes]] = []
    size = 0
    for member, part in parts:
        if content and size + len(part) > SHARD_BYTES:
            yield content
            content, size = [], 0
        content.append((member, part))
        size += len(part)
    if content:
        yield content


def _progress(verb: str, total: int) -> tqdm[NoReturn]:
    """A bar with rate and time left on a terminal; elsewhere a line now and then, as logs are read there."""
    is_terminal = sys.stderr.isatty()
    return tqdm(
        desc=verb,
        total=total,
        unit="img",
        leave=False,
        disable=not total,
        file=sys.stderr if is_terminal else _Lines(),
        mininterval=0.1 if is_terminal else TOLD_EVERY,
        delay=0 if is_terminal else TOLD_EVERY,
        bar_format=None if is_terminal else "{desc} {n} of {total}: {rate_fmt}, {remaining} left",
    )


class _Lines:
    """What tqdm writes, as log lines."""

    def write(self, text: str) -> None:
        if line := text.strip():
            log.info("%s", line)

    def flush(self) -> None:
        """Nothing is kept back."""
