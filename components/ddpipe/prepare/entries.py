"""What earlier prepares learned and stored: one entry next to the dataset for each of its shards.

    <store>/datasets/<name>/encoded/<sha256>.npz.gz      written right after the shard

An entry names the images in a shard, with the stamps of their files. So a prepare knows which files are
unchanged without reading them, reuses whole shards, and an interrupted one resumes where it stopped. Entries
are only hints: without them everything is read and encoded again.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.columns import Columns, Text
from ddpipe.data.manifest import DatasetManifest, ShardRef
from ddpipe.data.npy import array_of
from ddpipe.data.shards import shard_key
from ddpipe.data.typed import typed
from ddpipe.errors import CorruptObject, NoSuchObject
from ddpipe.processes.machine import cpus
from ddpipe.storage import Store

log = logging.getLogger(__name__)

SCHEMA = 5  # increase it when a decoder changes, too: all files are read again

ENDING = ".npz.gz"

FACTS = "facts"  # the part of an entry that is JSON: of the shard and its encoding
DIGEST = np.dtype("S32")  # a SHA-256 in a column

DAMAGED = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What the libraries raise for a file that is no entry."""

LARGEST = 2**30  # bytes that an entry may unpack to


@dataclass(frozen=True, slots=True)
class Members(Columns):
    """The images of a shard, in their order."""

    ids: Text
    stamps: Text
    sha256: Text  # of their files, 32 bytes each
    shapes: NDArray[np.uint32]  # before they were scaled, (images, 3)
    depths: NDArray[np.uint8]  # see `ddpipe.sources.images.Probed`
    moments: NDArray[np.uint64]  # of what the shard holds of them, (images, 3), of color (images, 7)
    phashes: Text  # of the same, see `ddpipe.prepare.duplicates`


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known about a shard; `encoding` are the facts of the encoding that made it."""

    shard: ShardRef
    encoding: Mapping[str, object]
    members: Members


def write_entry(store: Store, name: str, entry: Entry) -> None:
    """Store an entry next to a dataset."""
    store.write(f"{_folder(name)}{entry.shard.sha256}{ENDING}", encoded(entry))


def read_entries(store: Store, name: str) -> list[Entry]:
    """All entries that can be read; those of older schemas have other endings."""
    keys = [info.key for info in store.list(_folder(name)) if info.key.endswith(ENDING)]
    with ThreadPoolExecutor(cpus()) as pool:
        return [entry for found in pool.map(lambda key: _read(store, key), keys) for entry in found]


def members_of(manifest: DatasetManifest, store: Store) -> dict[str, list[Members]]:
    """What is known about the images of each split, as far as the entries still exist."""
    entries = {entry.shard: entry for entry in read_entries(store, manifest.name)}
    return {
        name: [entries[shard].members for shard in split.shards if shard in entries]
        for name, split in manifest.splits.items()
    }


def lost(entries: Iterable[Entry], store: Store) -> set[str]:
    """Hashes of the shards that are missing in the store, or have another size there."""
    sizes = {info.key: info.size for info in store.list("shards/")}
    return {entry.shard.sha256 for entry in entries if sizes.get(shard_key(entry.shard)) != entry.shard.bytes}


def encoded(entry: Entry) -> bytes:
    """As a file; the same entry always gives the same bytes."""
    facts = {"schema": SCHEMA, "shard": asdict(entry.shard), "encoding": entry.encoding}
    parts: dict[str, Any] = {FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    parts |= {field.name: getattr(entry.members, field.name) for field in fields(entry.members)}
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)


def decoded(data: bytes) -> Entry | None:
    """Read what `encoded` returned; None if it has another schema."""
    with gzip.open(io.BytesIO(data)) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it unpacks to more than {LARGEST} bytes")
    with zipfile.ZipFile(io.BytesIO(content)) as arrays:
        facts = json.loads(array_of(arrays, FACTS).tobytes())
        if facts["schema"] != SCHEMA:
            return None
        members = Members(*(array_of(arrays, field.name) for field in fields(Members)))
    shard = typed(ShardRef, facts["shard"])
    columns = members.columns()
    forms = [(column.dtype.kind, column.ndim, len(column)) for column in columns]
    wanted = [(kind, ndim, shard.count) for kind, ndim in zip("SSSuuuS", (1, 1, 1, 2, 1, 2, 1), strict=True)]
    if forms != wanted or members.shapes.shape[1] != 3 or members.sha256.dtype != DIGEST:  # noqa: PLR2004
        raise ValueError(f"its columns are not those of {shard.count} images: {forms}")
    if not isinstance(facts["encoding"], dict):
        raise ValueError("its encoding is not an object")  # noqa: TRY004 - a file's fault
    return Entry(shard, facts["encoding"], members)


def sizes(parts: Iterable[Members]) -> Counter[tuple[int, int]]:
    """Number of images of each height and width."""
    counts: Counter[tuple[int, int]] = Counter()
    for part in parts:
        shapes = part.shapes.astype(np.int64)
        found, numbers = np.unique(shapes[:, 0] << 32 | shapes[:, 1], return_counts=True)
        pairs = zip(found.tolist(), numbers.tolist(), strict=True)
        counts.update({divmod(size, 2**32): number for size, number in pairs})
    return counts


def _folder(name: str) -> str:
    return f"datasets/{name}/encoded/"


def _read(store: Store, key: str) -> Sequence[Entry]:
    try:
        entry = decoded(store.read(key))
    except NoSuchObject:  # removed since it was listed
        return []
    except (CorruptObject, *DAMAGED) as error:
        log.warning("%s/%s is ignored: %r", store.uri, key, error)
        return []
    return [entry] if entry else []
