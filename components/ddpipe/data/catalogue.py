"""Compares the versions of a store, finds damaged shards, and deletes those that no version needs.

    <store>/claims/<uuid>.json       a version that needs these shards is about to be published
    <store>/cleanings/<uuid>.json    these shards are about to be deleted

By these intents, processes that publish shards and processes that delete them notice each other. Neither can
look and act in one instant. So both write their intent first, and only then look for the other's:

    prepare    claims A     looks for cleanings of A: none     publishes     removes its claim
    clean-up                intends to delete A                looks for claims of A: keeps it

The process that looks last sees the other, and gives up. The intent of a killed process counts for an hour; a
day later `ddpipe data clean-up` removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from uuid import uuid4

from ddpipe.data.index import open_index
from ddpipe.data.manifest import ColumnRef, DatasetManifest, ShardRef, load_manifest
from ddpipe.data.shards import object_key
from ddpipe.data.versions import versions
from ddpipe.errors import CorruptObject, DatasetError, NoAccess, NoSuchObject
from ddpipe.processes.machine import cpus
from ddpipe.storage import ObjectInfo, Store

SCRATCH = "scratch/"  # folder for what was encoded for a version but not published
POOLS = ("shards/", "columns/")  # folders of objects that are named by their content
AT_ONCE = 8  # objects that are fetched or removed at the same time

Opened = tuple[DatasetManifest, Store]  # a dataset version, and the store of its shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the second of two versions differs from the first: samples by their ids, before and after."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    moved: Mapping[str, tuple[str, str]]
    relabelled: Mapping[str, tuple[str, str]]
    shared_bytes: int


def difference(old: Opened, new: Opened) -> Difference:
    """Compare what two versions say about their samples."""
    before, after = _samples(*old), _samples(*new)
    both = [(name, before[name], after[name]) for name in before if name in after]
    return Difference(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        moved={name: (was, now) for name, (was, _), (now, _) in both if was != now},
        relabelled={name: (was, now) for name, (_, was), (_, now) in both if was != now},
        shared_bytes=sum(shard.bytes for shard in shards_of(old[0]) & shards_of(new[0])),
    )


def _samples(manifest: DatasetManifest, store: Store) -> dict[str, tuple[str, str]]:
    """The split of each sample, and its class or labels."""
    names, found = manifest.classes, dict[str, tuple[str, str]]()
    for split in manifest.splits:
        index = open_index(manifest, split, store)
        for sample, label in zip(index.sample_ids, index.labels.tolist(), strict=True):
            several = [] if isinstance(label, int) else label
            shown = ", ".join(name for name, value in zip(names, several, strict=False) if value)
            found[sample] = split, names[label] if isinstance(label, int) else shown
    return found


def per_class(manifest: DatasetManifest, split: str) -> dict[str, int]:
    """How many samples of a split show each class."""
    return dict(zip(manifest.classes, manifest.splits[split].per_class, strict=True))


def shards_of(manifest: DatasetManifest) -> set[ShardRef]:
    """All shards of a version."""
    return {shard for split in manifest.splits.values() for shard in split.shards}


def objects_of(manifest: DatasetManifest) -> set[ShardRef | ColumnRef]:
    """Everything that a version needs besides its manifest: shards, and columns of ids, labels and groups."""
    columns = {column for split in manifest.splits.values() for column in split.columns}
    return {*shards_of(manifest), *columns}


def damage(items: Iterable[ShardRef | ColumnRef], store: Store) -> dict[ShardRef | ColumnRef, str]:
    """Read shards and columns; the problem of each that differs from what was written."""

    def check(item: ShardRef | ColumnRef) -> str | None:
        try:
            found = hashlib.sha256(store.read(object_key(item))).hexdigest()
        except (NoSuchObject, CorruptObject) as error:
            return f"{object_key(item)}: {error.seen}"
        return None if found == item.sha256 else f"{object_key(item)}: its content has the hash {found}"

    ordered = sorted(items, key=lambda item: item.sha256)
    with ThreadPoolExecutor(cpus()) as pool:
        problems = list(pool.map(check, ordered))
    return {item: problem for item, problem in zip(ordered, problems, strict=True) if problem}


def garbage(store: Store, grace: timedelta, now: datetime) -> list[ObjectInfo]:
    """Old objects that no version needs, the entries about them, and what killed processes left."""
    # Shards are listed before claims, claims before manifests: what is published in between counts as needed.
    stored = {PurePosixPath(info.key).stem: info for folder in POOLS for info in store.list(folder)}
    listing = list(store.list("datasets/"))
    needed = intended_shards(store, CLAIMS)
    for version in versions(store):
        with suppress(NoSuchObject):  # removed since it was listed
            needed |= {item.sha256 for item in objects_of(load_manifest(version.uri))}
    old = {name: info for name, info in stored.items() if name not in needed and now - info.modified > grace}
    entries = [info for info in listing if _subject(info.key) in old]
    unfinished = [info for info in store.list(SCRATCH) if now - info.modified > grace]
    intents = (info for folder in (CLAIMS, CLEANINGS) for info in store.list(folder))
    stale = [info for info in intents if now - info.modified > KEPT]  # their writers were killed
    return [*entries, *old.values(), *unfinished, *stale]


def _subject(key: str) -> str | None:
    """The shard that an entry of prepare's index is about."""
    match PurePosixPath(key).parts:
        case (_, _, "encoded", name):
            return name.partition(".")[0]
    return None


def clean_up(store: Store, grace: timedelta, now: datetime) -> list[ObjectInfo]:
    """Delete `garbage`."""
    found = garbage(store, grace, now)
    with intent(store, CLEANINGS, {PurePosixPath(info.key).stem for info in found}):
        # A prepare that started before our intent was written has its claim by now.
        still = {info.key for info in garbage(store, grace, now)}
        gone = [info for info in found if info.key in still]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(store.delete, [info.key for info in gone]))
    return gone


CLAIMS = "claims/"
CLEANINGS = "cleanings/"

VALID = timedelta(hours=1)  # much longer than publishing or deleting takes
KEPT = timedelta(days=1)  # after this time the writer of an intent is dead, even if clocks differ


@contextmanager
def intent(store: Store, folder: str, shards: Iterable[str]) -> Iterator[None]:
    """Write an intent for as long as the block takes."""
    key = f"{folder}{uuid4().hex}.json"
    store.write(key, json.dumps(sorted(shards)).encode())
    try:
        yield
    finally:
        with suppress(NoAccess):  # who may write need not be allowed to delete
            store.delete(key)


def intended_shards(store: Store, folder: str) -> set[str]:
    """Hashes of the shards of all intents that count."""
    now, shards = datetime.now(UTC), set[str]()
    for info in store.list(folder):
        if now - info.modified < VALID:
            with suppress(NoSuchObject):  # removed since it was listed
                shards |= _hashes(store, info.key)
    return shards


def _hashes(store: Store, key: str) -> set[str]:
    try:
        found = json.loads(store.read(key))
        if isinstance(found, list) and all(isinstance(item, str) for item in found):
            return set(found)
        seen = "it is not a list of hashes"
    except (ValueError, RecursionError) as error:
        seen = str(error)
    raise DatasetError(
        what="the store cannot be changed safely: an intent is damaged",
        which=f"{store.uri}/{key}",
        seen=seen,
        do="Delete this file if no ddpipe process is writing to the store, or wait for an hour.",
    )
