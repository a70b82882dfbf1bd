"""The sources by the names that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ddpipe.prepare.sources.arrays import Cifar, Digits, Idx
from ddpipe.prepare.sources.base import Source, Table, misused
from ddpipe.prepare.sources.downloads import DOWNLOADS, fetched
from ddpipe.prepare.sources.folder import Folder
from ddpipe.prepare.sources.table import RANZCR, Csv
from ddpipe.prepare.sources.tars import Tars
from ddpipe.storage import open_store

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def _archive(path: str, label: str) -> Source:
    """The python archive, the folder that holds it, or else class folders of images."""
    if path.endswith((".tar.gz", ".tar")):
        return Cifar(path, label)
    name = {"labels": "cifar-10-python.tar.gz", "fine_labels": "cifar-100-python.tar.gz"}[label]
    return Cifar(f"{path.rstrip('/')}/{name}", label) if open_store(path).exists(name) else Folder(path)


SOURCES: Mapping[str, Callable[[str, Table], Source]] = {
    "digits": lambda _path, _table: Digits(),
    "folder": lambda path, _table: Folder(path),
    "csv": Csv,
    "ranzcr": lambda path, _table: Csv(path, RANZCR),
    "webdataset": lambda path, _table: Tars(path),
    "cifar10": lambda path, _table: _archive(path, "labels"),
    "cifar100": lambda path, _table: _archive(path, "fine_labels"),
    "mnist": lambda path, _table: Idx(path, DIGITS),
    "fashion-mnist": lambda path, _table: Idx(path, CLOTHES),
    "kmnist": lambda path, _table: Idx(path, KANA),
}
"""What makes each kind of source from a path and a table's columns."""


def open_source(name: str, path: str | None, table: Table) -> Source:
    """The source of this name; a well-known data set without a path is fetched.

    Raises:
        ParameterError: A path is missing, or given where there is none.
        SourceError: The data set can not be fetched.
    """
    if name == "digits" and path:
        raise misused(path, "the source `digits` is built in", "Leave the path out.")
    if name != "digits" and name not in DOWNLOADS and not path:
        raise misused(
            "path", f"the source `{name}` needs one", "Give the folder, or s3://bucket/prefix, with --path."
        )
    if name in DOWNLOADS and not path:
        path = fetched(name)
    return SOURCES[name](path or "", table)
