"""What a person names: the package by MODEL, the images by files, folders, tables and buckets.

Images are not listed as a whole: of a folder on disk the names of one folder at a time are in memory.
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from ddpipe.errors import NoSuchObject
from ddpipe.model.history import address
from ddpipe.model.package import FORMAT
from ddpipe.runs import NAME, Run
from ddpipe.sources.base import ENDINGS, Unreadable
from ddpipe.sources.listing import FileNames, listed_files, read_file
from ddpipe.storage import exists, open_store, read_uri

log = logging.getLogger(__name__)

TABLE = ".csv"


def package_uri(model: str, runs: str, store: str) -> str:
    """The package that MODEL means: a folder, an s3:// URI, the name of a run, or NAME@VERSION."""
    if "@" in model and (version := address(model, store)):
        return version
    if open_store(model).exists(FORMAT.seal):
        return model
    if NAME.fullmatch(model):
        run = Run.named(runs, model).origin("export")
        if open_store(run.model).exists(FORMAT.seal):
            return run.model
        model = f"{model}, and {run.model}"
    raise NoSuchObject(
        what="there is no finished model package",
        which=model,
        seen=f"it has no {FORMAT.seal}, which is written last",
        do=f"Give a folder or s3:// URI, the name of a run in {runs}, or NAME@champion. `{FORMAT.maker}` "
        "makes a package.",
    )


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file: its name in results, and what returns its content or raises `Unreadable`."""

    name: str
    read: Callable[[], bytes]

    @classmethod
    def at(cls, uri: str) -> Self:
        """The file at a path or URI."""
        folder, _, key = uri.rpartition("/")
        return cls(uri, lambda: read_file(folder or ("/" if uri.startswith("/") else "."), key))


def images_at(places: Sequence[str], image_column: str = "") -> Iterator[ImageFile]:
    """The images at these places, in their order; one that cannot be read stands for a place without any."""
    for place in places:
        if place.lower().endswith(TABLE):
            yield from _in_table(place, image_column)
        elif "://" in place:
            yield from _in_bucket(place)
        elif Path(place).is_dir():
            yield from _in_folder(place)
        elif Path(place).exists():
            yield ImageFile.at(place)
        else:
            yield _nothing(place, "there is no such file or folder")


def _in_folder(root: str) -> Iterator[ImageFile]:
    """Image files at any depth, folder by folder; hidden ones are ignored."""
    is_empty = True
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                is_empty = False
                yield ImageFile.at(str(Path(folder, name)))
    if is_empty:
        yield _nothing(root, f"no name in this folder ends with one of {', '.join(ENDINGS)}")


def _in_bucket(uri: str) -> Iterator[ImageFile]:
    """One object, or all images below a prefix."""
    if exists(uri):
        yield ImageFile.at(uri)
        return
    store, is_empty = open_store(uri), True
    for info in store.list():
        if info.key.lower().endswith(ENDINGS):
            is_empty = False
            yield ImageFile.at(f"{store.uri}/{info.key}")
    if is_empty:
        yield _nothing(uri, "there is no such object, and no image below this prefix")


def _in_table(uri: str, column: str) -> Iterator[ImageFile]:
    """The files that a CSV file names; relative paths start at its own folder."""
    folder = uri.rpartition("/")[0]
    try:
        lines = _lines(uri)
    except (NoSuchObject, OSError, UnicodeDecodeError) as error:
        yield _nothing(uri, f"the table cannot be read: {error}")
        return
    with lines:
        rows = csv.DictReader(lines)
        names = list(rows.fieldnames or ())
        if not names or (column and column not in names):
            yield _nothing(uri, f"it has no column {column!r}: its columns are {', '.join(names) or 'none'}")
            return
        for row in rows:
            path = (row[column or names[0]] or "").strip()
            is_whole = "://" in path or path.startswith("/") or not folder
            if path:
                yield _respelled(ImageFile.at(path if is_whole else f"{folder}/{path}"), path, folder)


def _respelled(file: ImageFile, name: str, folder: str) -> ImageFile:
    """The file that a table names, or the one below its folder that it spells in another way."""

    def read() -> bytes:
        try:
            return file.read()
        except Unreadable:
            if len(found := _names_below(folder or ".").match(name)) != 1:
                raise
            log.warning("%s is read as %s", file.name, found[0])
            return read_file(folder or ".", found[0])

    return ImageFile(file.name, read)


@lru_cache(maxsize=1)
def _names_below(folder: str) -> FileNames:
    return FileNames(info.key for info in listed_files(folder).infos)


def _lines(uri: str) -> io.TextIOBase:
    """A table's lines; of a local file only the current one is in memory."""
    if local := open_store(uri).local_path(""):
        return local.open(encoding="utf-8-sig", newline="")
    return io.StringIO(read_uri(uri).decode("utf-8-sig"), newline="")


def _nothing(place: str, seen: str) -> ImageFile:
    def read() -> bytes:
        raise Unreadable(seen)

    return ImageFile(place, read)
