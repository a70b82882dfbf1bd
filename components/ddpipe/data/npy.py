"""Arrays of .npy files that are not trusted: from a mapping of the file, its bytes, or an archive of them.

numpy itself allocates what a header claims before it looks for the content, and a header can make Python's
parser fail in many ways. Here the header is compared with the bytes that there are, and every failure is a
ValueError.

A file mapped into memory is loaded only where it is read, and all processes of a machine share it. Python
keeps it open for each mapping, and many systems allow a process 1,024 files: 64 GB of shards. So the limit is
raised to what the system allows, and from Python 3.13 on no file stays open.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import resource
import sys
import tokenize
import zipfile
import zlib
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.errors import DatasetError

HEADER = 2**16  # bytes in which the header of such a file ends
DENSEST = 1100  # times that a byte of a compressed archive can become: the limit of deflate is 1032


def to_bytes(array: NDArray[Any]) -> bytes:
    """An array of any shape as the content of a .npy file."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()


def array_in(data: mmap.mmap | bytes) -> NDArray[Any]:
    """The array of a .npy file, of the shape and dtype in its header: a view of the content."""
    start = io.BytesIO(data[:HEADER])
    shape, dtype = _header(start)
    count = _fitting(shape, dtype, len(data) - start.tell())
    return np.frombuffer(data, dtype, count, start.tell()).reshape(shape)


def array_of(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an .npz file, of the shape and dtype in its header."""
    try:
        item = archive.getinfo(f"{name}.npy")
        if item.file_size > DENSEST * item.compress_size:
            raise ValueError(f"{name} claims {item.file_size} bytes, more than the archive can hold")
        with archive.open(item) as file:
            shape, dtype = _header(file)
            _fitting(shape, dtype, item.file_size)
        return array_in(archive.read(item))
    except (KeyError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{name}: {error}") from error


_PARSING = Lock()
"""numpy parses headers with `ast`, which in Python 3.11 raises SystemError now and then when several threads
do so at once (python/cpython#106905)."""


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type, from the start of a .npy file."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"its version is {version}, not (1, 0)")
    try:
        with _PARSING:
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError) as error:
        raise ValueError("its header is malformed") from error
    if is_fortran or dtype.hasobject:
        raise ValueError(f"it holds {dtype} in another order or as objects")
    return shape, dtype


def _fitting(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> int:
    """How many values there are, if as many bytes are there."""
    count = math.prod(shape)
    if any(length < 0 for length in shape) or count * dtype.itemsize > size:
        raise ValueError(f"it has {max(0, size)} bytes for {dtype} {shape}")
    return count


def mapped(path: Path) -> mmap.mmap:
    """A file's content, read-only; of an empty file no bytes can be read."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != most:  # each shard needs one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with path.open("rb") as file:
            untracked = {"trackfd": False} if sys.version_info >= (3, 13) else {}
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **untracked)
    except (OSError, ValueError) as error:
        many = isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
        raise DatasetError(
            what="a file of a dataset cannot be opened",
            which=str(path),
            seen=f"{getattr(error, 'strerror', error)} (limit: {most} open files)" if many else str(error),
            do="Allow this process more open files (`ulimit -n`): each shard needs one."
            if many
            else "Run the same `ddpipe prepare` again with --verify: it writes damaged files again.",
        ) from error
