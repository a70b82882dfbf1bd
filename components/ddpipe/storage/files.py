"""Objects as files below a folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from uuid import uuid4

from ddpipe.errors import CorruptObject, NoAccess, NoSuchObject, NotWritable
from ddpipe.storage.base import ObjectInfo, held_folders

PARTIAL = ".partial-"  # how the names of files begin that are still being written; no listing shows them
LOCK = ".lock"  # how those end that processes lock


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hands out a file to fill, which then takes the place of `path`, or vanishes if anything goes wrong."""
    partial = path.with_name(f"{PARTIAL}{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)  # else the name could be the old file's again after a power failure
    except OSError as error:
        raise _not_writable(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_writable(path: Path, error: OSError) -> NotWritable:
    return NotWritable(
        what="the store cannot be written to",
        which=str(path),
        seen=error.strerror or str(error),
        do="Free some space, or name a folder on a disk that this user may write to.",
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file: another one beside it, which stays, as the file itself is replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{PARTIAL}{path.name}{LOCK}").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise _not_writable(path, error) from error


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """The listing entry of a file."""
    modified = datetime.fromtimestamp(status.st_mtime, UTC)
    return ObjectInfo(key, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", modified)


def _cannot_be_listed(error: OSError) -> None:
    """Files that are not listed would count as missing, and what they need as garbage."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):  # none, or none any more
        return
    raise NoAccess(
        what="a folder cannot be listed",
        which=str(error.filename),
        seen=error.strerror or str(error),
        do="Give this user the right to read it.",
    ) from error


class FileStore:
    """A folder, made by the first write; an object is written beside its target, then renamed."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100 - resolve() would follow links

    @property
    def uri(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def read(self, key: str) -> bytes:
        """The whole file."""
        with self._reading(key) as path:
            return path.read_bytes()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object; see `Store.read_range`."""
        with self._reading(key) as path, path.open("rb") as file:
            file.seek(start)
            data = file.read(length)
        if len(data) < length:
            raise CorruptObject(
                what="an object is shorter than it should be",
                which=str(self.local_path(key)),
                seen=f"{len(data)} of {length} bytes from offset {start}",
                do="Delete it and run the step again that wrote it.",
            )
        return data

    def write(self, key: str, data: bytes) -> None:
        """Create or replace a file."""
        with replacing(self.local_path(key)) as partial:
            partial.write_bytes(data)

    def swap(self, key: str, expected: bytes | None, data: bytes) -> bool:
        """Replace a file if its content is still `expected`; processes take turns by a lock beside it."""
        with _locked(self.local_path(key)):
            if (self.read(key) if self.exists(key) else None) != expected:
                return False
            self.write(key, data)
            return True

    def upload(self, path: Path, key: str) -> None:
        """Create or replace a file with a copy of another."""
        with (
            path.open("rb") as source,
            replacing(self.local_path(key)) as partial,
            partial.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)

    def download(self, key: str, path: Path) -> None:
        """Put a copy of the object at `path`."""
        with self._reading(key) as found:
            FileStore(path.parent).upload(found, path.name)

    def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return self.local_path(key).is_file()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files whose relative paths start with `prefix`; files still being written are left out."""
        yield from self._files(prefix, lambda name: not name.startswith(PARTIAL))

    def _files(self, prefix: str, wanted: Callable[[str], bool]) -> Iterator[ObjectInfo]:
        top = self._root / prefix.rpartition("/")[0]
        keys = (
            (Path(folder) / name).relative_to(self._root).as_posix()
            for folder, _, names in os.walk(top, onerror=_cannot_be_listed)
            for name in names
            if wanted(name)
        )
        for key in sorted(key for key in keys if key.startswith(prefix)):
            try:
                status = self.local_path(key).stat()
            except FileNotFoundError:  # removed by another process since the walk
                continue
            yield info_of(key, status)

    def unfinished(self, before: datetime, *, delete: bool) -> tuple[ObjectInfo, ...]:
        """Hidden files, but no locks: these stay."""
        held = held_folders(self.list())
        hidden = self._files("", lambda name: name.startswith(PARTIAL) and not name.endswith(LOCK))
        found = [one for one in hidden if one.modified < before and not one.key.startswith(held)]
        for info in found if delete else ():
            self.delete(info.key)
        return tuple(found)

    def delete(self, key: str) -> None:
        """Remove a file; no error if there is none."""
        try:
            self.local_path(key).unlink(missing_ok=True)
        except OSError as error:
            raise _not_writable(self.local_path(key), error) from error

    def child(self, prefix: str) -> FileStore:
        """The folder below this one."""
        return FileStore(self.local_path(prefix))

    def check_writable(self) -> None:
        """Write and remove a small file."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self._root, prefix=PARTIAL) as file:
                file.write(b"writable")
        except OSError as error:
            raise _not_writable(self._root, error) from error

    def local_path(self, key: str) -> Path:
        """The file."""
        return self._root / key

    @contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self.local_path(key)
        try:
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                # A FIFO would wait for a writer for ever, a device such as /dev/zero would never end.
                raise NoSuchObject(
                    what="an object cannot be read",
                    which=str(path),
                    seen="it is a FIFO, socket or device, not a file",
                    do="Give the path of a file.",
                )
            yield path
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise NoSuchObject(
                what="an object is missing",
                which=str(path),
                seen="it is a folder, not a file" if path.is_dir() else "there is no such file",
                do="Check the path; if the step that writes it failed, run that again.",
            ) from error
        except PermissionError as error:
            raise NoAccess(
                what="an object cannot be read",
                which=str(path),
                seen=error.strerror or str(error),
                do="Give this user the right to read it.",
            ) from error
