"""One interface to every place where objects are kept: s3:// buckets and plain paths.

    store = open_store("s3://datasets/team-a")      # or "minio://...", "file:///...", "some/folder"
    store.write("greeting.txt", b"hello")
    store.child("shards").upload(Path("a.npy"), "a.npy")

A key is a relative path with forward slashes. Every write is atomic: a reader sees the whole object or none.
"""

from __future__ import annotations

from pathlib import Path

from ddpipe.errors import NoSuchObject, ParameterError
from ddpipe.storage.base import ObjectInfo, Store
from ddpipe.storage.files import FileStore

__all__ = [
    "ObjectInfo",
    "Store",
    "existing_store",
    "exists",
    "open_store",
    "read_uri",
    "split_uri",
    "write_uri",
]


def open_store(uri: str) -> Store:
    """The store at `uri`; nothing is contacted or created yet. Raises ParameterError if it can be none."""
    if not uri:
        raise _not_one("''", "it is empty")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return FileStore(Path(uri))
    if scheme == "file":
        return FileStore(Path(rest))
    if scheme in {"s3", "minio"}:
        # A quarter of a second that only those pay who use a bucket.
        from ddpipe.storage.s3 import open_bucket  # noqa: PLC0415

        bucket, _, prefix = rest.partition("/")
        return open_bucket(bucket, prefix)
    raise _not_one(uri, f"{scheme}:// is not known")


def existing_store(uri: str) -> Store:
    """The store at `uri`, to list what is in it: a path that is mistyped must not look like an empty one."""
    store = open_store(uri)
    if (root := store.local_path("")) and not root.is_dir():
        seen = "it is a file, not a folder" if root.exists() else "there is no such folder"
        do = "Check the path. A run makes it: `ddpipe run photos`; with --gate-model NAME, also a model."
        raise NoSuchObject(what="nothing can be listed", which=uri, seen=seen, do=do)
    return store


def _not_one(uri: str, seen: str) -> ParameterError:
    return ParameterError(
        what="the store cannot be opened",
        which=uri,
        seen=seen,
        do="Give s3://bucket/prefix, minio://bucket/prefix, file:///folder or a plain path.",
    )


def split_uri(uri: str) -> tuple[Store, str]:
    """The store of the folder that holds an object, and the object's name in it."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    return open_store(folder or ("/" if uri.startswith("/") else ".")), name


def read_uri(uri: str) -> bytes:
    """The whole object at `uri`."""
    store, name = split_uri(uri)
    return store.read(name)


def write_uri(uri: str, data: bytes) -> None:
    """Make `data` the object at `uri`, whole or not at all."""
    store, name = split_uri(uri)
    store.write(name, data)


def exists(uri: str) -> bool:
    """Whether there is an object at `uri` or, if it ends with "/", any object below it."""
    if uri.endswith("/"):
        return any(True for _ in open_store(uri.rstrip("/")).list())
    store, name = split_uri(uri)
    return store.exists(name)
