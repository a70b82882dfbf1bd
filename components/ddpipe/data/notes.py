"""Notes by which those who use shards and those who delete them see each other.

    <store>/claims/<uuid>.json       somebody is about to publish a version that needs these shards
    <store>/cleanings/<uuid>.json    somebody is about to delete these shards

Neither can look and act in one instant. So both leave their note first, and only then look for the other's:
whoever looks last sees the other, and gives way. The note of a process that was killed counts for an hour,
and a day later cleaning up removes it.
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
"""Until nobody can doubt, whatever the clocks say, that the note's writer is dead."""


@contextmanager
def noted(store: Store, folder: str, shards: Iterable[str]) -> Iterator[None]:
    """Leave a note for as long as the block takes; `shards` are their hashes."""
    key = f"{folder}{uuid4().hex}.json"
    store.write(key, json.dumps(sorted(shards)).encode())
    try:
        yield
    finally:
        with suppress(NoAccess):  # who may write need not be allowed to delete
            store.delete(key)


def noted_shards(store: Store, folder: str) -> set[str]:
    """Hashes of the shards of all notes that count."""
    now, shards = datetime.now(UTC), set[str]()
    for info in store.list(folder):
        if now - info.modified < VALID:
            with suppress(NoSuchObject):  # done since it was listed
                shards.update(json.loads(store.read(info.key)))
    return shards


def dead_notes(store: Store, now: datetime) -> list[ObjectInfo]:
    """Notes that killed processes have left."""
    return [
        info for folder in (CLAIMS, CLEANINGS) for info in store.list(folder) if now - info.modified > KEPT
    ]
