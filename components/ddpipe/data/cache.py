"""The folder of this machine for what was fetched from elsewhere: shards of remote stores, downloads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpipe.errors import NotWritable


def default_cache() -> Path:
    """`$DDPIPE_CACHE`, or ~/.cache/ddpipe."""
    return Path(os.environ.get("DDPIPE_CACHE") or Path.home() / ".cache" / "ddpipe")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Processes of this machine go through one at a time; a killed one lets the next in.

    Args:
        path: Of the lock file; it stays.

    Raises:
        NotWritable: There can be no such file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise NotWritable(
            what="the cache of this machine cannot be written to",
            which=str(path),
            seen=error.strerror or str(error),
            do="Name a folder that this user may write to with DDPIPE_CACHE.",
        ) from error
    with file:
        yield
