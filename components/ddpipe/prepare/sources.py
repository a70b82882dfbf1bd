"""Where raw data comes from: one class per kind of source, and the line in `SOURCES` that names it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddpipe.errors import ParameterError, SourceError
from ddpipe.prepare.images import Shape, Unreadable, decode, probe, shaped


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows.

    Attributes:
        id: A name that stays with it from version to version.
        label: Index of its class.
    """

    id: str
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a source holds, found without decoding.

    Attributes:
        classes: Their names.
        samples: In the order of their ids.
        shape: Height and width that most images have; 3 channels if any image has colour.
        fingerprint: SHA-256 over the ids and the content of all samples, readable or not.
        problems: Why a sample can not be read, by id; such samples are not among `samples`.
    """

    classes: tuple[str, ...]
    samples: tuple[Sample, ...]
    shape: Shape
    fingerprint: str
    problems: Mapping[str, str]


class Source(Protocol):
    """Raw data that can become a dataset."""

    def survey(self) -> Survey:
        """Find out what there is; raises `SourceError` if there is nothing to work with."""

    def decode(self, sample: Sample, shape: Shape) -> NDArray[np.uint8]:
        """The pixels of one sample in this shape; raises `Unreadable`."""


class Digits:
    """The 1,797 real handwritten digits, 8 by 8 pixels, that scikit-learn carries."""

    def __init__(self, path: Path | None) -> None:
        if path:
            raise _misused(str(path), "the source `digits` is built in", "Leave the path out.")

    def survey(self) -> Survey:
        """Ten classes of about 180 digits each."""
        labels = self._bunch.target
        content = hashlib.sha256(self._bunch.images.tobytes() + labels.tobytes())
        return Survey(
            classes=tuple(str(name) for name in self._bunch.target_names),
            samples=tuple(Sample(f"{index:04d}", int(label)) for index, label in enumerate(labels)),
            shape=(*self._bunch.images.shape[1:], 1),
            fingerprint=content.hexdigest(),
            problems={},
        )

    def decode(self, sample: Sample, shape: Shape) -> NDArray[np.uint8]:
        """The digit, its 17 shades of grey spread over 0 to 255."""
        shades = 16
        pixels: NDArray[np.float64] = self._bunch.images[int(sample.id)] * (255 / shades)
        return shaped(Image.fromarray(np.rint(pixels).astype(np.uint8)), shape)

    @cached_property
    def _bunch(self) -> Any:  # noqa: ANN401 - scikit-learn has no types
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import, for this source only

        return load_digits()


class Folder:
    """Images in one folder per class: <path>/<class>/**/<image>; what a dot hides is not looked at."""

    def __init__(self, path: Path | None) -> None:
        if not path:
            raise _misused(
                "path", "the source `folder` needs one", "Give the folder with one folder per class."
            )
        if not path.is_dir():
            raise _refused(str(path), "there is no such folder", "Give the folder with one folder per class.")
        self._root = path

    def survey(self) -> Survey:
        """Read every file once, for its fingerprint and its header."""
        folders = sorted(entry for entry in self._root.iterdir() if entry.is_dir() and _visible(entry.name))
        samples: list[Sample] = []
        shapes: list[Shape] = []
        problems: dict[str, str] = {}
        content = hashlib.sha256()
        for label, folder in enumerate(folders):
            for path in self._files(folder):
                sample = path.relative_to(self._root).as_posix()
                data = path.read_bytes()
                content.update(f"{sample}\0{hashlib.sha256(data).hexdigest()}\n".encode())
                try:
                    shapes.append(probe(data))
                    samples.append(Sample(sample, label))
                except Unreadable as error:
                    problems[sample] = str(error)
        if not samples and not problems:
            raise _refused(
                str(self._root),
                f"it holds {len(folders)} folders and no image in any of them",
                "Give the folder with one folder of images per class.",
            )
        return Survey(
            classes=tuple(folder.name for folder in folders),
            samples=tuple(samples),
            shape=_common(shapes),
            fingerprint=content.hexdigest(),
            problems=problems,
        )

    def decode(self, sample: Sample, shape: Shape) -> NDArray[np.uint8]:
        """The image, upright and in this shape."""
        return decode((self._root / sample.id).read_bytes(), shape)

    def _files(self, folder: Path) -> Iterable[Path]:
        paths = (path for path in folder.rglob("*") if path.is_file())
        return sorted(path for path in paths if all(map(_visible, path.relative_to(self._root).parts)))


SOURCES: Mapping[str, Callable[[Path | None], Source]] = {"digits": Digits, "folder": Folder}
"""By the name that a user gives."""


def _visible(name: str) -> bool:
    return not name.startswith(".")


def _common(shapes: list[Shape]) -> Shape:
    """The size that most images have, and as many channels as the richest."""
    if not shapes:
        return 1, 1, 1
    (height, width), _ = Counter(shape[:2] for shape in shapes).most_common(1)[0]
    return height, width, max(channels for _, _, channels in shapes)


def _misused(which: str, seen: str, do: str) -> ParameterError:
    return ParameterError(what="the data can not be prepared", which=which, seen=seen, do=do)


def _refused(which: str, seen: str, do: str) -> SourceError:
    return SourceError(what="the raw data can not become a dataset", which=which, seen=seen, do=do)
