"""A shard or column as a file of this machine: fetched if its store is elsewhere, and verified once for all.

    <cache>/shards|columns/<sha256>.*         copies of what remote stores hold
    <cache>/proofs/<hash of a path>.json      what the file at that path looked like when it was verified
    <cache>/proofs/<hash of a path>.lock      one process fetches and verifies, the others wait

A file that matches its proof is not read again; one that was written since then is. So the ranks of a node,
and its next start, read each shard once. `ddpipe data verify` always reads the shards of a store, and without
the folder of proofs everything is verified again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from ddpipe.data.cache import locked
from ddpipe.data.manifest import ColumnRef, ShardRef
from ddpipe.data.shards import object_key, verify
from ddpipe.errors import DatasetError, NotWritable
from ddpipe.storage import Store

_log = logging.getLogger(__name__)

TICK = 0.02  # resolution of modification times of a file system, in seconds


def fetched(store: Store, item: ShardRef | ColumnRef, cache: Path) -> Path:
    """A verified shard or column on this machine; a damaged copy of a remote one is fetched again."""
    key = object_key(item)
    if not (local := store.local_path(key)):
        return _copy(store, item, cache)
    if not local.is_file():
        store.read(key)  # raises the reason
    proof = _proof(local, cache)
    try:
        with locked(proof.with_suffix(".lock")):
            _verify_once(local, item, proof)
    except NotWritable:
        verify(local, item)
    return local


def _copy(store: Store, item: ShardRef | ColumnRef, cache: Path) -> Path:
    path = cache / object_key(item)
    proof = _proof(path, cache)
    with locked(proof.with_suffix(".lock")):
        if path.is_file():
            try:
                _verify_once(path, item, proof)
            except DatasetError as error:
                _log.warning("%s; it is fetched again", error.seen)
            else:
                return path
        incoming = path.with_suffix(".incoming")
        store.download(object_key(item), incoming)
        _verify_once(incoming, item, proof)
        incoming.replace(path)
    return path


def _proof(path: Path, cache: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    return cache / "proofs" / f"{name}.json"


def _verify_once(path: Path, item: ShardRef | ColumnRef, proof: Path) -> None:
    """Compare a file's hash unless that was done since it was last written; its lock is held during this."""
    status = path.stat()
    # The file itself, not its name: renaming a verified file changes nothing of it.
    facts = {
        "sha256": item.sha256,
        "bytes": status.st_size,
        "modified": status.st_mtime_ns,
        "inode": status.st_ino,
    }
    with suppress(FileNotFoundError, ValueError, RecursionError):  # none yet, or its writer died
        if json.loads(proof.read_bytes()) == facts:
            return
    if 0 <= time.time() - status.st_mtime < TICK:
        time.sleep(TICK)  # every later write changes the modification time
    verify(path, item)
    with suppress(OSError):  # a full disk: without a proof it is read again
        proof.write_text(json.dumps(facts))
