"""What earlier prepares found out and stored: one entry beside the dataset for each of its shards.

    <store>/datasets/<name>/encoded/<sha256>.json.gz     written right after the shard

An entry names the images in a shard, with the stamps of their files. So a prepare knows without reading them
which files are unchanged, takes over whole shards, and an interrupted one goes on where it was. Entries are
only hints: without them everything is read and encoded again.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from typing import Any

from ddpipe.data.manifest import ShardRef
from ddpipe.data.shards import shard_key
from ddpipe.errors import CorruptObject, NoSuchObject
from ddpipe.prepare.encoding import Moments
from ddpipe.prepare.images import Shape
from ddpipe.storage import Store

log = logging.getLogger(__name__)

SCHEMA = 3

AT_ONCE = 16
"""Entries that are fetched at the same time."""


@dataclass(frozen=True, slots=True)
class Member:
    """One image of a shard.

    Attributes:
        id: Of the sample.
        stamp: Of its file when it was read.
        sha256: Of its file, in hex.
        shape: Of its image, before it was scaled.
        moments: Of what the shard holds of it.
        phash: Of the same, see `ddpipe.prepare.duplicates`.
        depth: Of its image, see `ddpipe.prepare.images.Probed`.
    """

    id: str
    stamp: str
    sha256: str
    shape: Shape
    moments: Moments
    phash: str
    depth: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a shard.

    Attributes:
        shard: Its name and size.
        encoding: The facts of the encoding that made it.
        members: In the order of its images.
    """

    shard: ShardRef
    encoding: Mapping[str, object]
    members: tuple[Member, ...]


def write_entry(store: Store, name: str, entry: Entry) -> None:
    """Put an entry beside the dataset `name`."""
    content = {
        "schema": SCHEMA,
        "shard": asdict(entry.shard),
        "encoding": entry.encoding,
        "members": [astuple(member) for member in entry.members],
    }
    data = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), compresslevel=5, mtime=0)
    store.write(f"{_folder(name)}{entry.shard.sha256}.json.gz", data)


def read_entries(store: Store, name: str) -> list[Entry]:
    """All entries that can be read."""
    keys = [info.key for info in store.list(_folder(name))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [entry for found in pool.map(lambda key: _read(store, key), keys) for entry in found]


def lost(entries: Iterable[Entry], store: Store) -> set[str]:
    """Hashes of the shards that are not in the store, or not with the size that they should have."""
    sizes = {info.key: info.size for info in store.list("shards/")}
    return {entry.shard.sha256 for entry in entries if sizes.get(shard_key(entry.shard)) != entry.shard.bytes}


def _folder(name: str) -> str:
    return f"datasets/{name}/encoded/"


def _read(store: Store, key: str) -> Sequence[Entry]:
    try:
        content = json.loads(gzip.decompress(store.read(key)))
        if content["schema"] != SCHEMA:
            return []
        members = tuple(_members(content["members"]))
        return [Entry(ShardRef(**content["shard"]), content["encoding"], members)]
    except NoSuchObject:  # removed since it was listed
        return []
    except (CorruptObject, OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        log.warning("%s/%s is ignored: %r", store.uri, key, error)
        return []


def _members(rows: Sequence[Sequence[Any]]) -> Iterator[Member]:
    for name, stamp, sha256, shape, moments, phash, depth in rows:
        yield Member(name, stamp, sha256, tuple(shape), tuple(moments), phash, depth)
