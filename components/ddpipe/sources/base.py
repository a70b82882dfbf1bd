"""What every source of raw data tells and gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ddpipe.data.manifest import Label
from ddpipe.data.names import printable
from ddpipe.errors import SourceError
from ddpipe.spelling import option
from ddpipe.storage import Store, open_store

if TYPE_CHECKING:
    from ddpipe.sources.sample_columns import (
        Samples,  # numpy; the names of parameters are asked for without it
    )


IMAGES = (
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "dcm", "dicom",
)  # fmt: skip
"""Endings of the names of image files."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows.

    Attributes:
        id: A name that stays with it from version to version.
        label: Multiclass: index of its class. Multilabel: 0 or 1 for each class.
        stamp: Changes whenever the image may have changed; known without reading it.
        where: What its source needs to find it again.
        group: Samples of one group (such as one patient) belong into one split; empty: it stands alone.
        split: The split that the source itself puts it into; empty: it leaves that to us.
    """

    id: str
    label: Label
    stamp: str
    where: str = ""
    group: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a source holds, found without reading its images.

    Attributes:
        classes: Their names.
        samples: In an order that is always the same; columns, as there may be a million of them.
        task: "multiclass" or "multilabel".
        problems: Why a sample cannot be used, by a printable name; such samples are not among `samples`.
        facts: What else the manifest keeps of the source: `left_out`, how many rows were left out for which
            reason; `uncertain`, what uncertain labels count as.
        shape: Height, width and channels of all images, if the source knows them without reading any.
    """

    classes: tuple[str, ...]
    samples: Samples
    task: str = "multiclass"
    problems: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, int, int] | None = None


class Unreadable(Exception):
    """This file cannot become pixels; says why."""


class Source(Protocol):
    """Raw data that can become a dataset; safe to use from several threads."""

    def survey(self) -> Survey:
        """Find out what there is; raises `SourceError` if there is nothing to work with."""

    def read(self, sample: Sample) -> bytes:
        """The image file of a sample; a source of bare pixels wraps them in one (`images.wrapped`).

        Raises:
            Unreadable: It cannot be read any more, while others can.
            StoreError: None can be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Which columns of a CSV file say what.

    Attributes:
        file: The CSV file; a relative path starts at the images' folder, or else at the working directory.
        image: Column that names the image: a path, or what is left of it without folder and ending.
        labels: One column of class names, or several of 0 and 1; empty: all columns that are left.
        group: Column of what must not be torn apart between splits.
        split: Column of train, validation and test.
        skip_unlabelled: Whether rows without a label are left out.
        uncertain: With several labels, what -1 is: "zero", "one", or "drop" for leaving the row out; a blank
            beside other labels is then 0. Empty: both are refused.
        time: Column of when each row is from.
        newest_days: Only rows of so many days up to the newest one are taken; 0: all.
    """

    file: str = "train.csv"
    image: str = ""
    labels: tuple[str, ...] = ()
    group: str = ""
    split: str = ""
    skip_unlabelled: bool = False
    uncertain: str = ""
    time: str = ""
    newest_days: float = 0.0


def sorted_out(samples: Iterable[Sample]) -> tuple[Samples, dict[str, str]]:
    """The samples with usable ids, and what is the matter with the others."""
    from ddpipe.sources.sample_columns import Samples  # noqa: PLC0415 - numpy, which compiling must not need

    problems: dict[str, str] = {}

    def good() -> Iterator[Sample]:
        for sample in samples:
            if shown := printable(sample.id):
                problems[shown] = "its name is not UTF-8, or has control characters: rename it"
            else:
                yield sample

    return Samples.of(good()), problems


def abridged(names: Sequence[str], most: int = 5) -> str:
    """The first few names, in a line."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def store_of(path: str) -> Store:
    """The folder or bucket of raw data.

    Raises:
        SourceError: There is no such folder.
    """
    store = open_store(path)
    root = store.local_path("")
    if root and not root.is_dir():
        seen = "it is a file, not a folder" if root.exists() else "there is no such folder"
        raise refused(path, seen, f"Correct {option('source_path')}.")
    return store


def refused(which: str, seen: str, do: str) -> SourceError:
    """The source's data cannot be used."""
    return SourceError(what="the raw data cannot become a dataset", which=which, seen=seen, do=do)
