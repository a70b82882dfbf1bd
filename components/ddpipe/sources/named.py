"""The sources by the names that a user gives; numpy is imported only to open one that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddpipe.sources.base import Source, Table, store_of
from ddpipe.sources.downloads import DOWNLOADS, fetched
from ddpipe.sources.folder import Folder
from ddpipe.sources.table import Csv
from ddpipe.sources.tars import Tars

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
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_FINE.split())

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


def _cifar(archive: str, label: str, classes: Sequence[str]) -> Opener:
    """The python archive, a folder with it or its content, or else class folders with just these names."""

    def opened(path: str, _table: Table) -> Source:
        from ddpipe.sources.arrays import ARCHIVE, Cifar  # noqa: PLC0415

        if path.endswith(ARCHIVE):
            return Cifar(path, label)
        store = store_of(path)
        if store.exists(archive):
            return Cifar(f"{path.rstrip('/')}/{archive}", label)
        if store.exists("batches.meta") or store.exists("meta"):
            return Cifar(path, label)
        return Folder(path, classes)

    return opened


SOURCES: Mapping[str, Opener] = {
    "digits": _digits,
    "folder": lambda path, _table: Folder(path),
    "csv": Csv,
    "webdataset": lambda path, _table: Tars(path),
    "cifar10": _cifar("cifar-10-python.tar.gz", "labels", CIFAR10),
    "cifar100": _cifar("cifar-100-python.tar.gz", "fine_labels", CIFAR100),
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
