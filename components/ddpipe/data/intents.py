"""Intents: how processes that publish shards and processes that delete them notice each other.

    <store>/claims/<uuid>.json       a version that needs these shards is about to be published
    <store>/cleanings/<uuid>.json    these shards are about to be deleted

Neither can look and act in one instant. So both write their intent first, and only then look for the other's:

    prepare    claims A     looks for cleanings of A: none     publishes     removes its claim
    clean-up                intends to delete A                looks for claims of A: keeps it

Whoever looks last sees the other, and gives up. The intent of a killed process counts for an hour, and a day
later `ddpipe data clean-up` removes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from ddpipe.errors import NoAccess, NoSuchObject
from ddpipe.storage import ObjectInfo, Store

CLAIMS = "claims/"
CLEANINGS = "cleanings/"

VALID = timedelta(hours=1)
"""Much longer than publishing or deleting takes."""

KEPT = timedelta(days=1)
"""After this time the writer of an intent is dead, even if clocks differ."""


@contextmanager
def intent(store: Store, folder: str, shards: Iterable[str]) -> Iterator[None]:
    """Write an intent for as long as the block takes.

    Args:
        store: Of the shards.
        folder: `CLAIMS` or `CLEANINGS`.
        shards: Their hashes.

    Raises:
        StoreError: The intent cannot be written.
    """
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
                shards.update(json.loads(store.read(info.key)))
    return shards


def stale_intents(store: Store, now: datetime) -> list[ObjectInfo]:
    """Intents that killed processes have left."""
    return [
        info for folder in (CLAIMS, CLEANINGS) for info in store.list(folder) if now - info.modified > KEPT
    ]
