"""Intents: how processes that publish shards and processes that delete them notice each other.

    <store>/claims/<uuid>.json       a version that needs these shards is about to be published
    <store>/cleanings/<uuid>.json    these shards are about to be deleted

Neither can look and act in one instant. So both write their intent first, and only then look for the other's:

    prepare    claims A     looks for cleanings of A: none     publishes     removes its claim
    clean-up                intends to delete A                looks for claims of A: keeps it

The process that looks last sees the other, and gives up. The intent of a killed process counts for an hour; a
day later `ddpipe data clean-up` removes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from ddpipe.errors import DatasetError, NoAccess, NoSuchObject
from ddpipe.storage import ObjectInfo, Store

CLAIMS = "claims/"
CLEANINGS = "cleanings/"

VALID = timedelta(hours=1)
"""Much longer than publishing or deleting takes."""

KEPT = timedelta(days=1)
"""After this time the writer of an intent is dead, even if clocks differ."""


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


def stale_intents(store: Store, now: datetime) -> list[ObjectInfo]:
    """Intents that killed processes have left."""
    return [
        info for folder in (CLAIMS, CLEANINGS) for info in store.list(folder) if now - info.modified > KEPT
    ]
