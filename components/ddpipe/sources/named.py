"""The sources by the names that a user gives; numpy is imported only to open one that needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import urllib3

from ddpipe.data.cache import default_cache
from ddpipe.sources.base import Source, Table, error_for_source, store_of
from ddpipe.sources.folder import ClassFolders
from ddpipe.sources.table import Csv
from ddpipe.sources.tars import Tars
from ddpipe.storage.files import replacing

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

Opener = Callable[[str, Table], Source]  # makes a source from a path and a table's columns


def _arrays() -> ModuleType:
    from ddpipe.sources import arrays  # noqa: PLC0415 - numpy

    return arrays


def _cifar(archive: str, label: str) -> Opener:
    """The python archive, a folder with it or its content, or else class folders."""

    def opened(path: str, _table: Table) -> Source:
        from ddpipe.sources.arrays import ARCHIVE, Cifar  # noqa: PLC0415

        if path.endswith(ARCHIVE):
            return Cifar(path, label)
        store = store_of(path)
        if store.exists(archive):
            return Cifar(f"{path.rstrip('/')}/{archive}", label)
        if store.exists("batches.meta") or store.exists("meta"):
            return Cifar(path, label)
        return ClassFolders(path)

    return opened


SOURCES: Mapping[str, Opener] = {
    "digits": lambda _path, _table: _arrays().Digits(),
    "folder": lambda path, _table: ClassFolders(path),
    "csv": Csv,
    "webdataset": lambda path, _table: Tars(path),
    "cifar10": _cifar("cifar-10-python.tar.gz", "labels"),
    "cifar100": _cifar("cifar-100-python.tar.gz", "fine_labels"),
    "mnist": lambda path, _table: _arrays().Idx(path, DIGITS),
    "fashion-mnist": lambda path, _table: _arrays().Idx(path, CLOTHES),
}
"""Each kind of source, and how it is opened."""

BUILT_IN = frozenset({"digits"})  # sources without a path


def open_source(name: str, path: str, table: Table) -> Source:
    """Open a source; a well-known data set without a path is downloaded."""
    if name in DOWNLOADS and not path:
        path = fetched(name)
    return SOURCES[name](path, table)


@dataclass(frozen=True, slots=True)
class Download:
    """The folder of a data set's original files, and the SHA-256 of each."""

    url: str
    sha256: Mapping[str, str]


DOWNLOADS: Mapping[str, Download] = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Download(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
    ),
}

PIECE, LARGEST = 2**20, 2**30  # bytes of a download at a time, and in all


def fetched(name: str) -> str:
    """The folder with the files of a data set, fetched once into this machine's cache."""
    folder = default_cache() / "downloads" / name
    for file, sha256 in DOWNLOADS[name].sha256.items():
        if not (folder / file).is_file():
            _fetch(f"{DOWNLOADS[name].url}/{file}", sha256, folder / file)
    return str(folder)


def _fetch(url: str, sha256: str, path: Path) -> None:
    digest = hashlib.sha256()
    do = f"Get the file {path.name} on a connected machine, and give its folder as `source_path`."
    try:
        with (
            urllib3.PoolManager(timeout=urllib3.Timeout(connect=10, read=60), retries=2) as pool,
            pool.request("GET", url, preload_content=False) as response,
            replacing(path) as partial,
            partial.open("wb") as file,
        ):
            if response.status != 200:  # noqa: PLR2004
                raise error_for_source(url, f"the server answers {response.status}", do)
            for piece in response.stream(PIECE):
                digest.update(piece)
                if file.tell() > LARGEST:
                    raise error_for_source(url, f"it sends more than {LARGEST:,} bytes", do)
                file.write(piece)
            if digest.hexdigest() != sha256:
                raise error_for_source(
                    url, f"its SHA-256 is {digest.hexdigest()}, not {sha256}: it is another file", do
                )
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise error_for_source(url, f"it cannot be downloaded: {reason}", do) from error
