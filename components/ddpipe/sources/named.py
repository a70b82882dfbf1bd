"""The sources by the names that a user gives; numpy is imported only to open one that needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

Opener = Callable[[str, Table], Source]
"""Makes a source from a path and a table's columns."""


def _digits(_path: str, _table: Table) -> Source:
    from ddpipe.sources.arrays import Digits  # noqa: PLC0415

    return Digits()


def _idx(classes: Sequence[str]) -> Opener:
    def opened(path: str, _table: Table) -> Source:
        from ddpipe.sources.arrays import Idx  # noqa: PLC0415

        return Idx(path, classes)

    return opened


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
    "digits": _digits,
    "folder": lambda path, _table: ClassFolders(path),
    "csv": Csv,
    "webdataset": lambda path, _table: Tars(path),
    "cifar10": _cifar("cifar-10-python.tar.gz", "labels"),
    "cifar100": _cifar("cifar-100-python.tar.gz", "fine_labels"),
    "mnist": _idx(DIGITS),
    "fashion-mnist": _idx(CLOTHES),
    "kmnist": _idx(KANA),
}
"""Each kind of source, and how it is opened."""

BUILT_IN = frozenset({"digits"})
"""Sources without a path."""


def open_source(name: str, path: str, table: Table) -> Source:
    """Open a source; a well-known data set without a path is downloaded."""
    if name in DOWNLOADS and not path:
        path = fetched(name)
    return SOURCES[name](path, table)


@dataclass(frozen=True, slots=True)
class Download:
    """The folder of a data set's original files, and their hashes, which torchvision checks, too."""

    url: str
    md5: Mapping[str, str]


DOWNLOADS: Mapping[str, Download] = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Download(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "kmnist": Download(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        {
            "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
            "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
            "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
            "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
        },
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz", {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz", {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
    ),
}

PIECE = 2**20


def fetched(name: str) -> str:
    """The folder with the files of a data set, fetched once into this machine's cache."""
    folder = default_cache() / "downloads" / name
    for file, md5 in DOWNLOADS[name].md5.items():
        if not (folder / file).is_file():
            _fetch(f"{DOWNLOADS[name].url}/{file}", md5, folder / file)
    return str(folder)


def _fetch(url: str, md5: str, path: Path) -> None:
    digest = hashlib.md5(usedforsecurity=False)
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
                file.write(piece)
            if digest.hexdigest() != md5:
                raise error_for_source(
                    url, f"its MD5 is {digest.hexdigest()}, not {md5}: it is another file", do
                )
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise error_for_source(url, f"it cannot be downloaded: {reason}", do) from error
