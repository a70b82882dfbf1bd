"""One interface to every place where objects are kept: s3:// buckets and plain paths.

    store = open_store("s3://datasets/team-a")      # or "minio://...", "file:///...", "some/folder"
    store.write("greeting.txt", b"hello")
    store.child("shards").upload(Path("a.npy"), "a.npy")

A key is a relative path with forward slashes. Every write is atomic: a reader sees the whole object or none.
"""

from __future__ import annotations

from ddpipe.storage.base import ObjectInfo, Store
from ddpipe.storage.open import exists, open_store, read_uri, split_uri, write_uri

__all__ = ["ObjectInfo", "Store", "exists", "open_store", "read_uri", "split_uri", "write_uri"]
