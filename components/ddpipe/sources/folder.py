"""Class folders, on disk or in a bucket: <path>/<class>/**/<image>, or the same below train/ and test/."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddpipe.data.manifest import printable
from ddpipe.errors import SourceError
from ddpipe.sources.base import (
    ENDINGS,
    Survey,
    abridged,
    as_class,
    error_for_source,
    parts_of,
    sorted_out,
    split_called,
)
from ddpipe.sources.listing import listed_files, read_file, stamp
from ddpipe.sources.sample import Sample
from ddpipe.storage import ObjectInfo

log = logging.getLogger(__name__)

NO_PICTURES = (
    *(".avi", ".mov", ".mp3", ".mp4", ".wav", ".csv", ".tsv", ".json", ".xml", ".yaml", ".npy", ".ipynb"),
    *(".doc", ".docx", ".html", ".md", ".pdf", ".txt", ".xls", ".xlsx", ".gz", ".tar", ".zip", ".py"),
    *(".bak", ".db", ".ini", ".lnk", ".log", ".url"),
)
"""Endings of files that lie among pictures; files with any other ending are tried."""


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
        if others := [file.info.key for file in found if file.info.key.lower().endswith(NO_PICTURES)]:
            log.warning("%d files of %s are no pictures: %s", len(others), self.path, abridged(others))
            found = [file for file in found if not file.info.key.lower().endswith(NO_PICTURES)]
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
        left_out = self._left_out(listing.infos, found, has_splits=has_splits)
        doubt = _doubt(found)
        return Survey(classes=classes, samples=samples, problems=problems, facts=left_out, doubt=doubt)

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return read_file(self.path, sample.where)

    def _has_splits(self, infos: Iterable[ObjectInfo]) -> bool:
        """Whether the topmost folders are splits, and the classes lie in them."""
        tops = {top for top, *rest in (parts_of(info.key) for info in infos) if rest}
        named = {top: split for top in sorted(tops) if (split := split_called(top))}
        splits = set(named.values())
        if named.keys() == tops and ("train" in splits or len(splits) < 2):  # noqa: PLR2004
            return "train" in splits
        if len(splits) < 2:  # noqa: PLR2004 - one such name may well be a class
            return False
        others = ", ".join(sorted(tops - named.keys()))
        raise error_for_source(
            self.path,
            f"the folders {', '.join(named)} look like splits, but "
            + (f"{others} is next to them" if others else "none of them is for training"),
            "Move it elsewhere; or, if all of them are classes, rename those that look like splits."
            if others
            else "Call the folder for training train; or, if they are classes, rename them.",
        )

    def _left_out(
        self, infos: Sequence[ObjectInfo], found: Sequence[Placed], *, has_splits: bool
    ) -> dict[str, Any]:
        """What the manifest says about images that are in no class folder; also logged with their names."""
        inside = {file.info.key for file in found}
        outside = [
            info.key for info in infos if info.key not in inside and info.key.lower().endswith(ENDINGS)
        ]
        if not outside:
            return {}
        reason = "images outside the class folders"
        log.warning("%d %s of %s are left out: %s", len(outside), reason, self.path, abridged(outside))
        for top, count in Counter(key.partition("/")[0] for key in outside if "/" in key).items():
            if has_splits and not any(key.startswith(f"{top}/") for key in inside):
                log.warning("%s/ has no class folders: its %d images are not labelled", top, count)
        return {"left_out": {reason: len(outside)}}

    def _warn_of_empty_classes(
        self, empty_folders: Iterable[str], classes: Collection[str], *, has_splits: bool
    ) -> None:
        depth = 2 if has_splits else 1
        parts = [parts_of(folder) for folder in empty_folders]
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


def _doubt(found: Sequence[Placed]) -> tuple[str, str] | None:
    """Folders that all hold the same folders are probably splits, and the classes lie in them."""
    inner: dict[str, set[str]] = defaultdict(set)
    for file in found:
        inner[file.name].add(file.below[0] if len(file.below) > 1 else "")
    below = sorted(next(iter(inner.values()), ()))
    if len(inner) < 2 or len(below) < 2 or "" in below or any(one != {*below} for one in inner.values()):  # noqa: PLR2004
        return None
    by_size = [name for name, _ in Counter(file.name for file in found).most_common()]
    # A name that is understood keeps its meaning; without one for training, the largest other folder is that.
    taken = {split for name in by_size if (split := split_called(name))}
    unknown = [name for name in by_size if not split_called(name)]
    wanted = ["train", *["validation"] * (len(by_size) > 2), "test"]  # noqa: PLR2004
    splits = [*(split for split in wanted if split not in taken), *["test"] * len(by_size)]
    mapping = ", ".join(f"{name} to {split}" for name, split in zip(unknown, splits, strict=False))
    seen = f"the folders {abridged(sorted(inner))} all hold the folders {abridged(below)}"
    do = (
        f"If the inner ones are, the others are splits: rename {mapping}. If the outer ones are, say with "
        "`group_pattern` what an inner one is, such as a day or a camera: '/([^/]*)/'."
    )
    return seen, do


def _placed(infos: Iterable[ObjectInfo], *, has_splits: bool) -> Iterator[Placed]:
    for info in infos:
        parts = parts_of(info.key)
        split = split_called(parts[0]) if has_splits and len(parts) > 1 else ""
        inner = parts[1:] if has_splits else parts
        if len(inner) > 1:
            yield Placed(split, as_class(inner[0]), inner[1:], info)
