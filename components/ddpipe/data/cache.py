"""The folder of this machine for what was fetched from elsewhere: shards of remote stores, downloads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def default_cache() -> Path:
    """`$DDPIPE_CACHE`, or ~/.cache/ddpipe."""
    return Path(os.environ.get("DDPIPE_CACHE") or Path.home() / ".cache" / "ddpipe")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Processes of this machine go through one at a time; a killed one lets the next in.

    Args:
        path: Of the lock file; it stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
