"""Files mapped into memory: only what is read is loaded, and all processes of a machine share it.

Python keeps a file open for each mapping, and many systems allow a process 1,024: 64 GB of shards. So the
limit is raised to what the system allows, and from Python 3.13 on no file stays open.
"""

from __future__ import annotations

import errno
import mmap
import resource
import sys
from pathlib import Path

from ddpipe.errors import DatasetError


def mapped(path: Path) -> mmap.mmap:
    """A file's content, read-only; of an empty file no bytes can be read."""
    try:
        try:
            return _mapped(path)
        except OSError as error:
            if error.errno != errno.EMFILE or not _raise_limit():
                raise
            return _mapped(path)
    except (OSError, ValueError) as error:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        many = isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
        raise DatasetError(
            what="a file of a dataset cannot be opened",
            which=str(path),
            seen=f"{error.strerror} (limit: {soft} open files)"
            if isinstance(error, OSError) and many
            else str(error),
            do="Allow this process more open files (`ulimit -n`): each shard needs one."
            if many
            else "Run the same `ddpipe prepare` again with --verify: it writes damaged files again.",
        ) from error


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if sys.version_info >= (3, 13):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _raise_limit() -> bool:
    """Allow this process as many open files as it may have; whether that is more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
