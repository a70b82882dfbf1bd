"""The protocol of all stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

KUBEFLOW_ENDPOINT = "minio-service.kubeflow:9000"  # Kubeflow's own object store, as pods reach it


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing."""

    key: str  # relative to the store that listed it
    size: int  # in bytes
    etag: str  # changes whenever the content does
    modified: datetime  # the last write, with a time zone


LEASE = "lease-"  # how the keys of leases begin, see lease.py
RENEWED = 60.0  # seconds for which a lease that is not renewed still counts as a living process


def held_folders(listing: Iterable[ObjectInfo]) -> tuple[str, ...]:
    """The folders whose leases have been renewed of late."""
    now = datetime.now(UTC)
    return tuple(
        info.key[: info.key.rfind("/") + 1]
        for info in listing
        if info.key.rpartition("/")[2].startswith(LEASE) and (now - info.modified).total_seconds() < RENEWED
    )


class Store(Protocol):
    """A place where objects are kept by key.

    Every method raises `NoSuchBucket`, `NoAccess` or `Unreachable` for these reasons; what else a
    method raises is documented there.
    """

    @property
    def uri(self) -> str:
        """Where this store is, in canonical form, without a trailing slash."""

    def read(self, key: str) -> bytes:
        """The whole object; raises `NoSuchObject`, or `CorruptObject` if it is not what was uploaded."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly so many bytes of an object; raises `CorruptObject` if it is shorter.

        Args:
            key: Of the object.
            start: First byte.
            length: Number of bytes.
        """

    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object; raises `NotWritable`."""

    def swap(self, key: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if its content is still what was read; returns whether it holds `data` now.

        Of several processes that expect the same content, at most one succeeds.

        Args:
            key: Of the object, which is small.
            expected: Its content; None if there must be no such object.
            data: The new content, which no other process writes: it says who wrote it.
        """

    def upload(self, path: Path, key: str) -> None:
        """Create or replace an object with a file's content; raises `NotWritable`."""

    def download(self, key: str, path: Path) -> None:
        """Put an object's verified content into a file, atomically."""

    def exists(self, key: str) -> bool:
        """Whether there is an object with this key."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose keys start with `prefix`, in the order of their keys."""

    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    def unfinished(self, before: datetime, *, delete: bool) -> tuple[ObjectInfo, ...]:
        """What killed writers have left: begun objects that nobody has continued since; deleted if so asked.

        What lies beside or below the lease of a living process is its own, and left out.
        """

    def child(self, prefix: str) -> Store:
        """The store of everything below `prefix`."""

    def check_writable(self) -> None:
        """Write and remove a small object, so that a read-only store is refused before any expensive work."""

    def local_path(self, key: str) -> Path | None:
        """The object's path on this machine, or None if it has to be fetched."""
