"""Which source reads the raw data at a path: `--source auto` looks at names and first bytes.

    photos/cat/1.jpg, photos/dog/2.jpg       folder
    labels.csv, which names images           csv
    000.tar with 1.jpg and 1.cls             webdataset
    train-images-idx3-ubyte, …               mnist, or a similar set by the hashes of its files
    cifar-10-python.tar.gz, data_batch_1, …  cifar10, cifar100

The look is bounded, so it costs the same for a million images. What could be two of these is rejected.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath

from ddpipe.errors import SourceError
from ddpipe.sources.base import (
    ENDINGS,
    IMAGES,
    UNPACKING,
    Table,
    abridged,
    error_for_source,
    inflated,
    parts_of,
    split_called,
)
from ddpipe.sources.listing import FileNames, first_keys
from ddpipe.sources.named import DOWNLOADS
from ddpipe.sources.table import ROWS, parsed
from ddpipe.storage import Store, open_store, split_uri
from ddpipe.storage.sealed import sha256

LOOKED_AT = 20_000  # files whose names decide
MEMBERS = 100  # files of a tar whose names decide
HEAD, MOST_INFLATED = 4 * 2**20, 64 * 2**20  # bytes read of a tar or a table, and what they may unpack to

IDX = re.compile(r"(?:train|t10k)-(?:images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
CIFAR10 = re.compile(r"data_batch_\d")
CIFAR100 = frozenset({"meta", "test", "train"})
ARCHIVES: Mapping[str, str] = {"cifar-10-python.tar.gz": "cifar10", "cifar-100-python.tar.gz": "cifar100"}
TABLES = (".csv", ".tsv")
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

LAYOUTS = """\
one folder of images per class (photos/cat/1.jpg, photos/dog/2.jpg), also below train/ and test/;
a table next to its images (labels.csv with the columns image and label);
WebDataset tars (1.jpg next to 1.cls);
the idx files of MNIST; the python archive of CIFAR, or its unpacked folder"""


@dataclass(frozen=True, slots=True)
class Detected:
    """What reads the raw data: one of `SOURCES`, what it takes as its path, and the table of csv."""

    source: str
    path: str
    table: str = Table().file


def detected(path: str) -> Detected:
    """The source of the raw data at a path."""
    store, name = split_uri(path)
    return _of_file(path, store, name) if name and store.exists(name) else _of_folder(path)


def with_table(path: str) -> Detected:
    """The source csv with the table at a path or in a folder, where options say that there is one."""
    store, name = split_uri(path)
    if name.lower().endswith(TABLES) and store.exists(name):
        return Detected("csv", _folder_of(path), name)
    keys = sorted(first_keys(path, LOOKED_AT))
    if tables := _tables(keys):
        naming = _naming(path, tables, [key for key in keys if key.lower().endswith(ENDINGS)])
        return _of_tables(path, naming or tables)
    return Detected("csv", path)  # which says that there is none


def _folder_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _of_file(path: str, store: Store, name: str) -> Detected:
    folder = _folder_of(path)
    if name.lower().endswith(TABLES):
        return Detected("csv", folder, name)
    if name.lower().endswith(TARS):
        return _of_tar(path, store, name)
    if IDX.fullmatch(name):
        return Detected(_kind_of_idx(store), folder)
    if CIFAR10.fullmatch(name):
        return Detected("cifar10", folder)
    seen = (
        "it is one image"
        if name.lower().endswith(ENDINGS)
        else f"it is a file {PurePosixPath(name).suffix or name!r}"
    )
    if name.lower().endswith(".zip"):
        raise error_for_source(path, "it is a zip archive", "Unpack it, and give the folder.")
    raise error_for_source(path, seen, f"Give one of these:\n{LAYOUTS}")


def _of_tar(path: str, store: Store, name: str) -> Detected:
    members = _members(store, name)
    if source := ARCHIVES.get(name) or _kind_of_cifar(members):
        return Detected(source, path)
    if _is_webdataset(members) and name.endswith(".tar"):
        return Detected("webdataset", path)
    if not members:
        raise error_for_source(path, "it is not a readable tar", "Get the archive again.")
    files = f"it is a tar of {abridged(members, 3)}"
    if _is_webdataset(members):
        raise error_for_source(path, f"{files}, and compressed", "Give the .tar: gunzip unpacks it.")
    raise error_for_source(path, files, "Unpack it with tar -xf, and give the folder.")


def _of_folder(path: str) -> Detected:
    keys = sorted(first_keys(path, LOOKED_AT))
    if not keys:
        raise error_for_source(path, "there are no files in it", f"Give one of these:\n{LAYOUTS}")
    if found := _well_known(path, keys):
        return found
    images = [key for key in keys if key.lower().endswith(ENDINGS)]
    classes = _classes(images)
    tables = _tables(keys)
    naming = _naming(path, tables, images)
    if len(classes) < 2 and not tables:  # noqa: PLR2004
        naming = _naming(path, _tables(keys, depth=1), images)
    if len(classes) > 1 and naming:
        raise error_for_source(
            path,
            f"it holds class folders ({abridged(classes)}) and a table that names images ({naming[0]})",
            f"Choose with `source` folder, or with `source` csv `table` {naming[0]}.",
        )
    folders = {key.rpartition("/")[0] for key in images}
    # In one folder only a table can tell the classes apart, although it seems to name none of the images.
    if naming or (len(tables) == 1 and images and (not classes or len(folders) == 1)):
        return _of_tables(path, naming or tables)
    if classes:
        return Detected("folder", path)
    if tar := next((key for key in keys if key.endswith(".tar")), ""):
        place = f"{path.rstrip('/')}/{tar}"
        found = _of_tar(place, *split_uri(place))  # the first one stands for all
        return replace(found, path=path) if found.source == "webdataset" else found
    raise _unknown(path, keys, images)


def _tables(keys: Iterable[str], depth: int = 0) -> list[str]:
    """Those next to the images, or to their folders, or in a folder of their own."""
    return [key for key in keys if key.count("/") == depth and key.lower().endswith(TABLES)]


def _naming(path: str, tables: Sequence[str], images: Sequence[str]) -> list[str]:
    """The tables that name images."""
    if not (tables and images):
        return []
    store, names = open_store(path), FileNames(images)
    return [key for key in tables if _names_images(store, key, names)]


def _of_tables(path: str, tables: Sequence[str]) -> Detected:
    """The one table, or the usual one of several."""
    if len(tables) > 1 and Table().file not in tables:
        raise error_for_source(
            path,
            f"several tables name its images: {abridged(tables)}",
            f"Choose one with `source` csv `table` {tables[0]}.",
        )
    table = tables[0] if len(tables) == 1 else Table().file
    return Detected("csv", path, table)


def _well_known(path: str, keys: Sequence[str]) -> Detected | None:
    """The files of MNIST or CIFAR, in this folder or in one below it."""
    by_folder: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        folder, _, name = key.rpartition("/")
        by_folder[folder].add(name)
    for folder, names in by_folder.items():
        place = f"{path.rstrip('/')}/{folder}" if folder else path
        if any(map(IDX.fullmatch, names)):
            return Detected(_kind_of_idx(open_store(place)), place)
        if archive := next((name for name in names if name in ARCHIVES), ""):
            return Detected(ARCHIVES[archive], place)
        if source := _kind_of_cifar(names):
            return Detected(source, place)
    return None


def _kind_of_cifar(keys: Iterable[str]) -> str:
    """From the names of pickled batches; "" for none."""
    names = {key.rpartition("/")[2] for key in keys}
    if any(map(CIFAR10.fullmatch, names)):
        return "cifar10"
    return "cifar100" if names >= CIFAR100 else ""


def _kind_of_idx(store: Store) -> str:
    """From the hashes of the original files; other files of this format are taken for digits."""
    for source, download in DOWNLOADS.items():
        for name, expected in download.sha256.items():
            if "labels" in name and store.exists(name) and sha256(store.read(name)) == expected:
                return source
    return "mnist"


def _classes(images: Iterable[str]) -> list[str]:
    """The folders that may be classes: the topmost ones, or those below the folders of splits."""
    parts = [parts_of(key) for key in images]
    tops = {one[0] for one in parts if len(one) > 1}
    depth = 1 if tops and all(map(split_called, tops)) else 0
    return sorted({one[depth] for one in parts if len(one) > depth + 1})


def _is_webdataset(members: Iterable[str]) -> bool:
    """Whether an image and a label have one name."""
    names = [key.partition(".") for key in members]
    images = {name for name, _, ending in names if ending.lower() in IMAGES}
    return any(name in images and ending.lower() in {"cls", "json"} for name, _, ending in names)


def _members(store: Store, name: str) -> list[str]:
    """The names of a tar's first files, as far as its first bytes show them."""
    found: list[str] = []
    with (
        suppress(*UNPACKING),
        tarfile.open(fileobj=io.BytesIO(inflated(_head(store, name), MOST_INFLATED)), mode="r|") as tar,
    ):
        found.extend(item.name for item in islice(tar, MEMBERS) if item.isreg())
    return found


def _head(store: Store, name: str) -> bytes:
    path = store.local_path(name)
    size = path.stat().st_size if path else next(store.list(name)).size
    return store.read_range(name, 0, min(HEAD, size))


def _names_images(store: Store, table: str, names: FileNames) -> bool:
    """Whether one of the first rows of a table names one of the images."""
    data = _head(store, table)
    if len(data) == HEAD:
        data = data[: data.rfind(b"\n") + 1]
    try:
        _, rows = parsed(f"{store.uri}/{table}", data)
    except SourceError:  # not a table; if it is the only one, the source csv says why
        return False
    return any(names.match(cell) for row in rows[:ROWS] for cell in row.cells.values())


def _unknown(path: str, keys: Sequence[str], images: Sequence[str]) -> SourceError:
    """The error for what no source reads; it says what is there."""
    if images:
        seen = f"{len(images):,} images are in it, but not in a class folder: {abridged(images, 3)}"
        return error_for_source(
            path, seen, f"Move them into one folder per class, or give one of these:\n{LAYOUTS}"
        )
    endings = Counter(PurePosixPath(key).suffix.lower() or "without ending" for key in keys)
    files = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(5))
    return error_for_source(path, f"none of its files is an image: {files}", f"Give one of these:\n{LAYOUTS}")
