"""Class folders, on disk or in a bucket: <path>/<class>/**/<image>, or the same below train/ and test/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ddpipe.prepare.sources.base import Sample, Survey, printable, refused, sorted_out, store_of
from ddpipe.storage import ObjectInfo, open_store

SPLIT_FOLDERS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""Folders that are no classes but hold the class folders of one split, if there is one for training."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Images in one folder per class; what a dot hides is not looked at.

    Attributes:
        path: A folder or s3://bucket/prefix.
        expected: The classes of a well-known data set; empty: any.
    """

    path: str
    expected: Sequence[str] = ()

    def survey(self) -> Survey:
        """List what there is; nothing is read."""
        found = list(_placed(files(self.path)))
        classes = tuple(sorted({name for _, name, _ in found if not printable(name)}))
        labels = {name: label for label, name in enumerate(classes)}
        samples, problems = sorted_out(
            Sample(info.key, labels.get(name, 0), stamp(info), where=info.key, split=split)
            for split, name, info in found
        )
        if not found:
            raise refused(
                self.path,
                "it holds no image in a class folder",
                "Give a folder, or s3://bucket/prefix, with one folder of images per class.",
            )
        if self.expected and set(classes) != set(self.expected):
            raise refused(
                self.path,
                f"its class folders are {', '.join(classes)}, not {', '.join(self.expected)}",
                "Give the original archive or class folders with these names; --source folder takes any.",
            )
        return Survey(classes=classes, samples=samples, problems=problems)

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return open_store(self.path).read(sample.where)


def files(path: str) -> Iterator[ObjectInfo]:
    """All objects below a path that no dot hides."""
    for info in store_of(path).list():
        if not any(part.startswith(".") for part in info.key.split("/")):
            yield info


def stamp(info: ObjectInfo) -> str:
    """Changes with the object."""
    return f"{info.size:x}-{info.etag}"


def _placed(infos: Iterable[ObjectInfo]) -> Iterator[tuple[str, str, ObjectInfo]]:
    """Split and class of each file that lies in a class's folder."""
    parts = [(PurePosixPath(info.key).parts, info) for info in infos]
    tops = {folders[0] for folders, _ in parts if len(folders) > 1}
    given = "train" in {SPLIT_FOLDERS.get(top.lower()) for top in tops} and all(
        top.lower() in SPLIT_FOLDERS for top in tops
    )
    for folders, info in parts:
        split = SPLIT_FOLDERS[folders[0].lower()] if given and len(folders) > 1 else ""
        inner = folders[1:] if given else folders
        if len(inner) > 1:
            yield split, inner[0], info
