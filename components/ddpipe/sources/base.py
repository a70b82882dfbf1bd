"""What every source of raw data provides."""

from __future__ import annotations

import bz2
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from unicodedata import normalize

from ddpipe.data.manifest import printable
from ddpipe.errors import SourceError
from ddpipe.sources.sample import Sample
from ddpipe.storage import Store, open_store

if TYPE_CHECKING:
    # numpy; the names of parameters are asked for without it
    from ddpipe.sources.samples import Samples


IMAGES = (
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "dcm", "dicom",
)  # fmt: skip
"""Endings of the names of image files."""

ENDINGS = tuple(f".{ending}" for ending in IMAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The samples of a source, found without reading its images."""

    classes: tuple[str, ...]
    samples: Samples  # in an order that is always the same; columns, as there may be a million of them
    task: str = "multiclass"
    problems: Mapping[str, str] = field(default_factory=dict)  # why others cannot be used, by printable names
    facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # for the manifest: how many were left out, and why
    shape: tuple[int, int, int] | None = None  # height, width and channels, if known without reading images
    doubt: tuple[str, str] | None = None  # why the classes may not be the ones meant, and what to do about it


class Unreadable(Exception):
    """This file cannot be decoded; the text says why."""


class Source(Protocol):
    """Raw data that can become a dataset; safe to use from several threads."""

    def survey(self) -> Survey:
        """List the samples; raises `SourceError` if there are none that can be used."""

    def read(self, sample: Sample) -> bytes:
        """The image file of a sample; a source of raw pixels wraps them in one (`images.wrapped`).

        Raises:
            Unreadable: This file cannot be read.
            StoreError: No file can be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The meaning of the columns of a CSV file."""

    file: str = "train.csv"  # a relative path starts at the images' folder, or else at the working directory
    image: str = ""  # names the image: a path, with or without folder and ending
    labels: tuple[str, ...] = ()  # one of class names, or several of 0 and 1; empty: all other columns
    group: str = ""
    split: str = ""
    skip_unlabelled: bool = False


def sorted_out(samples: Iterable[Sample]) -> tuple[Samples, dict[str, str]]:
    """The samples with suitable ids, and the problems of the others, by printable id."""
    from ddpipe.sources.samples import Samples  # noqa: PLC0415 - numpy, which compiling must not need

    problems: dict[str, str] = {}

    def good() -> Iterator[Sample]:
        for sample in samples:
            if shown := printable(sample.id):
                problems[shown] = "its name is not UTF-8, or has control characters: rename it"
            else:
                yield sample

    return Samples.of(good()), problems


SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "holdout"), "test"),
}
"""What people call the folder, or the rows, of a split; train_images and Test-Set mean the same."""

EXTRA_WORDS = frozenset({"data", "dataset", "folder", "image", "images", "img", "imgs", "set", "split"})


def split_called(name: str) -> str:
    """The split that a name means; "" if it means none."""
    words = [word for word in re.split(r"[\s_.-]+", name.lower()) if word not in EXTRA_WORDS]
    return SPLIT_WORDS.get("".join(words), "")


def parts_of(key: str) -> tuple[str, ...]:
    """The folders of a file and its name: `PurePosixPath` takes twenty times as long, of a million files."""
    return tuple(part for part in key.split("/") if part)


def as_class(name: str) -> str:
    """A class's name, however its accents are composed; a byte order mark is none of it."""
    return normalize("NFC", name.removeprefix("\ufeff"))


def abridged(names: Sequence[str], most: int = 5) -> str:
    """The first few names, in a line."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def store_of(path: str) -> Store:
    """The folder or bucket of raw data; raises `SourceError` if there is no such folder."""
    store = open_store(path)
    root = store.local_path("")
    if root and not root.is_dir():
        seen = "it is a file, not a folder" if root.exists() else "there is no such folder"
        raise error_for_source(path, seen, "Correct `source_path`.")
    return store


UNPACKING = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)  # of a damaged archive


def inflated(data: bytes, most: int) -> bytes:
    """What a compressed file holds, `most` bytes of it; any other file as it is.

    tarfile would unpack as many bytes for the name of a file as a header says.
    """
    gunzip: Callable[[], Any] = partial(zlib.decompressobj, 16 + zlib.MAX_WBITS)
    openers = {b"\x1f\x8b": gunzip, b"BZh": bz2.BZ2Decompressor, b"\xfd7zXZ": lzma.LZMADecompressor}
    for start, opener in openers.items():
        if data.startswith(start):
            content: bytes = opener().decompress(data, most)
            return content
    return data


def error_for_source(which: str, seen: str, do: str) -> SourceError:
    """The error for the raw data at a path that cannot be used.

    Args:
        which: The path.
        seen: What is wrong with it.
        do: What to do about it.
    """
    return SourceError(what="the raw data cannot become a dataset", which=which, seen=seen, do=do)


LARGEST = 1e9  # of a window; no scanner's unit comes near, and infinity and NaN are rejected as well


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How image files are read."""

    # Center and width in the scanner's units (for CT: Hounsfield); None: each DICOM file's own.
    window: tuple[float, float] | None = None
    first_frame: bool = False  # of several; else such files are rejected

    @property
    def facts(self) -> Mapping[str, object]:
        """What differs from the default."""
        window = {"window": list(self.window)} if self.window else {}
        return {**window, **({"frames": "first"} if self.first_frame else {})}

    @classmethod
    def parsed(cls, window: str, *, first_frame: bool) -> ReadOptions:
        """From `CENTER/WIDTH`, or an empty string."""
        if not window:
            return cls(None, first_frame)
        center, width = map(float, window.split("/"))
        if not (abs(center) < LARGEST and 0 < width < LARGEST):
            raise ValueError(window)
        return cls((center, width), first_frame)


DEFAULT = ReadOptions()
