"""The folder of this machine for what was fetched from elsewhere: shards of remote stores, downloads."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddpipe.errors import NotWritable, ParameterError


def default_cache() -> Path:
    """`$DDPIPE_CACHE`, or ~/.cache/ddpipe."""
    return Path(os.environ.get("DDPIPE_CACHE") or Path.home() / ".cache" / "ddpipe")


_KEPT_FREE = 0.05  # share of the disk that copies leave free


def room(cache: Path) -> int:
    """Bytes that further copies may take: what the disk has, and `$DDPIPE_CACHE_GB` allows."""
    existing = next(path for path in (cache.absolute(), *cache.absolute().parents) if path.is_dir())
    disk = shutil.disk_usage(existing)
    free = max(0, int(disk.free - _KEPT_FREE * disk.total))
    limit = _limit()
    return free if limit is None else max(0, min(free, limit - _used(cache)))


def _limit() -> int | None:
    given = os.environ.get("DDPIPE_CACHE_GB", "")
    if not given:
        return None
    with suppress(ValueError):
        size = float(given)
        if math.isfinite(size) and size >= 0:
            return int(size * 1e9)
    raise ParameterError(
        what="the limit of the cache cannot be read",
        which="DDPIPE_CACHE_GB",
        seen=f"{given!r} is not a number of gigabytes",
        do="Give a number such as 200, or leave it out: then the free disk space counts.",
    )


def _used(cache: Path) -> int:
    """Bytes of the copies that are there."""
    size = 0
    for path in (path for folder in ("shards", "columns") for path in (cache / folder).glob("*")):
        with suppress(FileNotFoundError):  # another process has just renamed it
            size += path.stat().st_size
    return size


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Processes of this machine go through one at a time; a killed one lets the next in."""
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
