"""Class folders, on disk or in a bucket: <path>/<class>/**/<image>, or the same below train/ and test/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ddpipe.errors import SourceError
from ddpipe.sources.base import Survey, printable, refused, sorted_out
from ddpipe.sources.listing import listed_files, read_file, stamp
from ddpipe.sources.sample import Sample
from ddpipe.storage import ObjectInfo

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
        listing = listed_files(self.path)
        found = list(_placed(listing.infos))
        classes = tuple(sorted({name for _, name, _ in found if not printable(name)}))
        labels = {name: label for label, name in enumerate(classes)}
        samples, unprintable = sorted_out(
            Sample(info.key, labels.get(name, 0), stamp(info), where=info.key, split=split)
            for split, name, info in found
        )
        problems = {**listing.problems, **unprintable}
        if len(classes) < 2 and not problems:  # noqa: PLR2004
            raise self._too_few(listing.infos, classes)
        if self.expected and set(classes) != set(self.expected):
            raise refused(
                self.path,
                f"its class folders are {', '.join(classes)}, not {', '.join(self.expected)}",
                "Give the original archive or class folders with these names; --source folder takes any.",
            )
        return Survey(classes=classes, samples=samples, problems=problems)

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return read_file(self.path, sample.where)

    def _too_few(self, infos: Iterable[ObjectInfo], classes: Sequence[str]) -> SourceError:
        """There are no two classes to tell apart; perhaps they lie one folder deeper."""
        do = "Give a folder, or s3://bucket/prefix, with one folder of images per class."
        if not classes:
            return refused(self.path, "it holds no image in a class folder", do)
        seen = f"it has only one class folder, {classes[0]!r}"
        parts = (PurePosixPath(info.key).parts for info in infos)
        below = sorted({inner for top, inner, *rest in parts if top == classes[0] and rest})
        if len(below) > 1:
            shown = ", ".join(below[:5]) + (", …" if len(below) > 5 else "")  # noqa: PLR2004
            seen = f"{seen}, which holds the folders {shown}"
            do = f"If these are the classes, give {self.path.rstrip('/')}/{classes[0]}."
        return refused(self.path, seen, do)


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
