"""Class folders, on disk or in a bucket: <path>/<class>/**/<image>, or the same below train/ and test/."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ddpipe.data.manifest import printable
from ddpipe.errors import SourceError
from ddpipe.sources.base import ENDINGS, Sample, Survey, abridged, error_for_source, sorted_out
from ddpipe.sources.listing import listed_files, read_file, stamp
from ddpipe.storage import ObjectInfo

log = logging.getLogger(__name__)

SPLIT_FOLDERS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""Folders that hold the class folders of one split, where there is one for training."""


class Placed(NamedTuple):
    """A file in a class folder: its split or "", its class, and its path below."""

    split: str
    name: str
    below: tuple[str, ...]
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """Images in one folder per class, below a folder or s3://bucket/prefix; hidden files are ignored."""

    path: str

    def survey(self) -> Survey:
        """List the files; none is read."""
        listing = listed_files(self.path)
        has_splits = self._has_splits(listing.infos)
        found = list(_placed(listing.infos, has_splits=has_splits))
        classes = tuple(sorted({file.name for file in found if not printable(file.name)}))
        labels = {name: label for label, name in enumerate(classes)}
        samples, unprintable = sorted_out(
            Sample(file.info.key, labels.get(file.name, 0), stamp(file.info), file.info.key, split=file.split)
            for file in found
        )
        problems = {**listing.problems, **unprintable}
        if len(classes) < 2 and not problems:  # noqa: PLR2004
            raise self._too_few(found, classes, has_splits=has_splits)
        self._warn_of_empty_classes(listing.empty_folders, classes, has_splits=has_splits)
        left_out = self._left_out(listing.infos, found)
        return Survey(classes=classes, samples=samples, problems=problems, facts=left_out)

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return read_file(self.path, sample.where)

    def _has_splits(self, infos: Iterable[ObjectInfo]) -> bool:
        """Whether the topmost folders are splits, and the classes lie in them."""
        tops = {top for top, *rest in (PurePosixPath(info.key).parts for info in infos) if rest}
        named = {top for top in tops if top.lower() in SPLIT_FOLDERS}
        splits = {SPLIT_FOLDERS[top.lower()] for top in named}
        if "train" not in splits or named == tops:
            return "train" in splits
        if len(splits) == 1:
            return False
        raise error_for_source(
            self.path,
            f"the folders {', '.join(sorted(named))} look like splits, but {', '.join(sorted(tops - named))} "
            "is next to them",
            "Move it elsewhere; or, if all of them are classes, rename those that look like splits.",
        )

    def _left_out(self, infos: Sequence[ObjectInfo], found: Sequence[Placed]) -> dict[str, Any]:
        """What the manifest says about images that are in no class folder; also logged with their names."""
        inside = {file.info.key for file in found}
        outside = [
            info.key for info in infos if info.key not in inside and info.key.lower().endswith(ENDINGS)
        ]
        if not outside:
            return {}
        reason = "images outside the class folders"
        log.warning("%d %s of %s are left out: %s", len(outside), reason, self.path, abridged(outside))
        return {"left_out": {reason: len(outside)}}

    def _warn_of_empty_classes(
        self, empty_folders: Iterable[str], classes: Collection[str], *, has_splits: bool
    ) -> None:
        depth = 2 if has_splits else 1
        parts = [PurePosixPath(folder).parts for folder in empty_folders]
        names = {inner[depth - 1] for inner in parts if len(inner) >= depth} - set(classes)
        if names:
            log.warning(
                "%d folders of %s have no images, so they do not become classes: %s",
                len(names),
                self.path,
                abridged(sorted(printable(name) or name for name in names)),
            )

    def _too_few(self, found: Sequence[Placed], classes: Sequence[str], *, has_splits: bool) -> SourceError:
        """The error for fewer than two classes; perhaps they are one folder deeper."""
        do = "Give a folder, or s3://bucket/prefix, with one folder of images per class."
        if not classes:
            return error_for_source(self.path, "it holds no image in a class folder", do)
        seen = f"it has only one class folder, {classes[0]!r}"
        below = sorted({file.below[0] for file in found if len(file.below) > 1})
        if len(below) > 1:
            seen = f"{seen}, which holds the folders {abridged(below)}"
            do = (
                f"If these are the classes, move them up by one folder, out of {classes[0]!r}."
                if has_splits
                else f"If these are the classes, give {self.path.rstrip('/')}/{classes[0]}."
            )
        return error_for_source(self.path, seen, do)


def _placed(infos: Iterable[ObjectInfo], *, has_splits: bool) -> Iterator[Placed]:
    """The files in class folders."""
    for info in infos:
        parts = PurePosixPath(info.key).parts
        split = SPLIT_FOLDERS[parts[0].lower()] if has_splits and len(parts) > 1 else ""
        inner = parts[1:] if has_splits else parts
        if len(inner) > 1:
            yield Placed(split, inner[0], inner[1:], info)
