"""Lists and reads the files of raw data, in a folder or a bucket."""

from __future__ import annotations

import logging
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from os import DirEntry, scandir, stat_result
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG
from unicodedata import normalize
from urllib.parse import unquote

from ddpipe.data.manifest import printable
from ddpipe.errors import NoAccess, NoSuchObject
from ddpipe.sources.base import Unreadable, abridged, split_called, store_of
from ddpipe.storage import ObjectInfo, Store, open_store
from ddpipe.storage.files import info_of

log = logging.getLogger(__name__)

LOST = "lost+found"  # a folder that file systems keep for the administrator
FOLLOW_LINKS = "DDPIPE_FOLLOW_LINKS"  # the variable that allows links out of the folder, if it is 1
OUTSIDE = "is a link out of the folder, to "
MAC = "__MACOSX"  # a folder in every zip archive from a Mac, with no data
Identity = tuple[int, int]  # device and inode: the same for a folder under all of its names


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything below a path except hidden files and folders; problems by printable keys."""

    infos: tuple[ObjectInfo, ...]
    problems: Mapping[str, str]
    empty_folders: tuple[str, ...] = ()


def listed_files(path: str) -> Listing:
    """All files below a path; links are followed, out of it only if `FOLLOW_LINKS` says so."""
    store = store_of(path)
    root = store.local_path("")
    if root is None:
        return _in_bucket(store)
    found = list(_walked(root))
    infos = sorted((item for item in found if isinstance(item, ObjectInfo)), key=lambda info: info.key)
    bad = dict(item for item in found if isinstance(item, tuple))
    if outside := [f"{key} {reason}" for key, reason in sorted(bad.items()) if reason.startswith(OUTSIDE)]:
        log.warning("%d links of %s are not followed: %s", len(outside), path, abridged(outside))
    return Listing(
        tuple(infos),
        {printable(key) or key: reason for key, reason in sorted(bad.items())},
        tuple(sorted(item for item in found if isinstance(item, str))),
    )


def first_keys(path: str, most: int) -> Iterator[str]:
    """The keys of some files below a path, those near the top first in a folder."""
    store = store_of(path)
    root = store.local_path("")
    visible = (info.key for info in store.list() if _is_visible(info.key) and not info.key.endswith("/"))
    return islice(_near(root, most) if root else visible, most)


def _near(root: Path, most: int) -> Iterator[str]:
    """The files of a folder, level by level; what cannot be read is left out."""
    folders, top = deque([(str(root), "")]), root.resolve()
    for _ in range(most):
        if not folders:
            return
        folder, prefix = folders.popleft()
        with suppress(OSError):
            for key, entry in list(_visible(folder, prefix)):
                if _leads_out(entry, top):
                    continue
                if entry.is_dir():
                    folders.append((entry.path, f"{key}/"))
                else:
                    yield key


def _is_visible(key: str) -> bool:
    return "/." not in f"/{key}" and f"{MAC}/" not in key


def _in_bucket(store: Store) -> Listing:
    """The objects; one of no bytes whose key ends with a slash is how consoles make a folder."""
    visible = [info for info in store.list() if _is_visible(info.key)]
    infos = tuple(info for info in visible if info.size or not info.key.endswith("/"))
    folders = {info.key for info in visible} - {info.key for info in infos}
    filled = {f"{folder}/" for info in infos for folder in map(str, PurePosixPath(info.key).parents)}
    return Listing(infos, {}, tuple(sorted(folder.rstrip("/") for folder in folders - filled)))


def read_file(path: str, key: str) -> bytes:
    """A file below a path."""
    store = open_store(path)
    try:
        return store.read(key)
    except NoSuchObject as error:
        raise Unreadable("the file no longer exists") from error
    except NoAccess as error:
        if store.local_path(key) is None:  # the credentials, for all objects alike
            raise
        raise Unreadable(f"it cannot be read: {error.seen}") from error
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error


class FileNames:
    r"""Files by every name a table may use for them: img\a.PNG, ./img/a.png, img/a%20b.png, and the like."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.respelled: dict[str, str] = {}  # names that were found in another spelling, and the files
        self._found: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            for name in _short_names(key):
                self._found[name].append(key)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def match(self, name: str) -> list[str]:
        """The files that a name may mean: one, or none, or several."""
        if found := self._found.get(name):
            return [name] if name in found else found  # a whole path is unambiguous
        parts = _as_here(name).split("/")
        is_absolute = not parts[0] or parts[0].endswith(":")
        for start in range(len(parts) if is_absolute else 1):
            if found := self._respelled.get("/".join(parts[start:])):
                self.respelled[name] = found[0]
                return found
        return []

    def warn_of_respelled(self, table: str) -> None:
        """Say once what was found in another spelling."""
        for name, key in islice(self.respelled.items(), 1):
            log.warning(
                "%s images have other names in %s than their files, such as %r for %s",
                f"{len(self.respelled):,}",
                table,
                name,
                key,
            )

    @cached_property
    def _respelled(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for name, keys in self._found.items():
            found[_as_here(name)] |= dict.fromkeys(keys)
        return {name: list(keys) for name, keys in found.items()}


def _short_names(key: str) -> set[str]:
    path = PurePosixPath(key)
    names = {key, path.name, path.stem, path.with_suffix("").as_posix()}
    if split_called(path.parts[0]):  # tables often name what lies below it
        names |= {name.partition("/")[2] for name in (key, path.with_suffix("").as_posix())}
    return names - {""}


def _as_here(name: str) -> str:
    """A path in the spelling in which names are compared."""
    return normalize("NFC", unquote(name.replace("\\", "/"))).casefold().removeprefix("./")


def stamp(info: ObjectInfo) -> str:
    """Changes with the object."""
    return f"{info.size:x}-{info.etag}"


def _leads_out(entry: DirEntry[str], top: Path) -> str:
    """Where a link out of the folder leads, which somebody else's archive may have brought; or nothing."""
    if not entry.is_symlink() or os.environ.get(FOLLOW_LINKS) == "1":
        return ""
    target = Path(entry.path).resolve()
    return "" if target.is_relative_to(top) else str(target)


def _walked(root: Path) -> Iterator[ObjectInfo | tuple[str, str] | str]:
    """Files; the key of something else and why it is none; the key of an empty folder. In no order."""
    top = root.resolve()
    folders = [(str(root), "", frozenset({_identity(root.stat())}))]
    while folders:
        folder, prefix, above = folders.pop()
        try:
            entries = list(_visible(folder, prefix))
        except OSError as error:
            yield prefix or ".", f"this folder cannot be read: {error.strerror}"
            continue
        if not entries and prefix:
            yield prefix.rstrip("/")
        for key, entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():  # else it was removed since the folder was read
                    yield key, "it is a broken link"
                continue
            except OSError as error:
                yield key, f"it cannot be read: {error.strerror}"
                continue
            if outside := _leads_out(entry, top):
                yield key, f"{OUTSIDE}{outside}: copy that, or set {FOLLOW_LINKS}=1 to use it"
            elif S_ISDIR(status.st_mode) and _identity(status) not in above:
                folders.append((entry.path, f"{key}/", above | {_identity(status)}))
            else:
                yield info_of(key, status) if S_ISREG(status.st_mode) else (key, _reason(status))


def _visible(folder: str, prefix: str) -> Iterator[tuple[str, DirEntry[str]]]:
    """The entries of a folder, except hidden ones, with their keys."""
    for entry in scandir(folder):
        if not entry.name.startswith(".") and entry.name != MAC and prefix + entry.name != LOST:
            yield prefix + entry.name, entry


def _reason(status: stat_result) -> str:
    """Why this cannot be read, nor be searched as a folder."""
    if S_ISDIR(status.st_mode):
        return "it is a link to a folder that contains it"
    return "it is neither a file nor a folder, but a pipe, a socket or a device"


def _identity(status: stat_result) -> Identity:
    return status.st_dev, status.st_ino
