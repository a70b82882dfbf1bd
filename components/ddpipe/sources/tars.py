"""WebDataset tars: files with one name up to the first dot are a sample, <name>.jpg with <name>.cls.

Where no two tars have a name in common, the name alone is the sample's id: packing the samples into other
tars then moves none of them to another split. Elsewhere the tar's path is a part of it.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ddpipe.data.manifest import printable
from ddpipe.sources.base import (
    ENDINGS,
    IMAGES,
    SPLIT_WORDS,
    Survey,
    abridged,
    as_class,
    error_for_source,
    sorted_out,
)
from ddpipe.sources.listing import listed_files, stamp
from ddpipe.sources.sample import Sample
from ddpipe.storage import ObjectInfo, Store, open_store, split_uri

PIECE = 4 * 2**20  # bytes of a tar that one request fetches
LABEL_BYTES = 2**20  # larger files are no labels; a .json may hold more than the label
LONGEST_NUMBER = 20  # digits of a class that counts as a number
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # how files of gzip, bzip2 and xz begin

AT_ONCE = 8  # tars that are listed at the same time


@dataclass(slots=True)
class _Member:
    """A sample as it is put together; there should be one image and one label."""

    images: list[str] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    cut: str = ""  # a file that would be its image if names did not end at their first dot

    @property
    def problem(self) -> str:
        """Why it cannot be used; "" if it can."""
        return "; ".join(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from self.problems
        if not self.images:
            cut = f": names end at their first dot, also that of {self.cut}" if self.cut else ""
            yield f"it has no image ({', '.join(IMAGES)}){cut}"
        if len(self.images) > 1:
            yield f"it has {len(self.images)} images of this name"
        if len(self.labels) > 1:
            yield f"its files disagree about its label: {', '.join(map(repr, sorted(self.labels)))}"
        for shown in filter(None, map(printable, sorted(self.labels))):
            yield f"its label is {shown!r}: it has control characters"
        if not (self.labels or self.problems):
            yield "it has no label: a .cls, or a .json with a label"


@dataclass(frozen=True, slots=True)
class Tars:
    """One tar, or all below a folder or prefix; train, val and test in all their paths are splits."""

    path: str

    @property
    def _folder(self) -> str:
        return split_uri(self.path)[0].uri if self.path.endswith(".tar") else self.path

    def survey(self) -> Survey:
        """List the tars once, for names, places and labels."""
        listed = listed_files(self._folder)
        only = self.path.rpartition("/")[2] if self.path.endswith(".tar") else ""
        infos = [info for info in listed.infos if info.key.endswith(".tar") and only in {"", info.key}]
        if not infos:
            raise error_for_source(self.path, "it holds no .tar", "Give the folder or prefix of the tars.")
        splits = self._splits(infos)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            listings = list(pool.map(self._listing, infos))
        if not any(listings):
            raise error_for_source(
                self.path, f"its {len(infos)} .tar hold no files", "Give the folder or prefix of the tars."
            )
        members = [
            (info.key, split, name, member)
            for info, split, listing in zip(infos, splits, listings, strict=True)
            for name, member in listing.items()
        ]
        names = {label for _, _, _, member in members for label in member.labels}
        classes = sorted(names, key=_place)
        labels = {name: label for label, name in enumerate(classes)}
        is_unique = len({name for _, _, name, _ in members}) == len(members)
        samples, unprintable = sorted_out(
            Sample(
                name if is_unique else f"{key}/{name}",
                labels[next(iter(member.labels))],
                member.images[0],
                where=member.images[0],
                split=split,
            )
            for key, split, name, member in members
            if not member.problem
        )
        bad = {f"{key}/{name}": member.problem for key, _, name, member in members if member.problem}
        unusable = {**listed.problems, **bad, **unprintable}
        return Survey(classes=tuple(classes), samples=samples, problems=unusable)

    def read(self, sample: Sample) -> bytes:
        """The bytes of the tar that are this image."""
        key, start, length, _ = sample.where.rsplit(":", 3)
        return open_store(self._folder).read_range(key, int(start), int(length))

    def _splits(self, infos: Sequence[ObjectInfo]) -> list[str]:
        """The split of each tar; "" for all unless their paths name splits, that of training among them."""
        splits = [_split(info.key) for info in infos]
        named = set(splits) - {""}
        if "train" not in named or (len(named) == 1 and "" in splits):
            return [""] * len(splits)
        if others := [info.key for info, split in zip(infos, splits, strict=True) if not split]:
            raise error_for_source(
                self.path,
                f"some tars are named after splits ({', '.join(sorted(named))}), but not {abridged(others)}",
                "Move these elsewhere, or put train, val or test into their paths, too.",
            )
        return splits

    def _listing(self, info: ObjectInfo) -> dict[str, _Member]:
        members: dict[str, _Member] = {}
        store = open_store(self._folder)
        try:
            file = io.BufferedReader(_Ranges(store, info), PIECE)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for item in tar:
                    folder, slash, base = item.name.removeprefix("./").rpartition("/")
                    name, _, ending = base.partition(".")
                    ending = ending.lower()
                    is_image = ending in IMAGES
                    if name and (item.isreg() or (is_image and not item.isdir())):
                        member = members.setdefault(f"{folder}{slash}{name}", _Member())
                        if not item.isreg():
                            member.problems.append(f"its .{ending} is a link or a device, not a file")
                        elif is_image:
                            place = f"{info.key}:{item.offset_data}:{item.size}:{stamp(info)}"
                            member.images.append(place)
                        elif ending in {"cls", "json"}:
                            _note_label(member, ending, tar, item)
                        elif ending.endswith(ENDINGS):
                            member.cut = base
                check_end(tar)
        except (tarfile.TarError, EOFError) as error:
            which = f"{self._folder}/{info.key}"
            if store.read_range(info.key, 0, min(tarfile.BLOCKSIZE, info.size)).startswith(COMPRESSED):
                do = "Unpack it, with gunzip or the like, and call the result .tar."
                raise error_for_source(which, "it is compressed, although it is called .tar", do) from error
            raise error_for_source(
                which, f"it is not a complete tar: {error}", "Get the tar again."
            ) from error
        return members


def check_end(tar: tarfile.TarFile) -> None:
    """Raise TarError unless a tar that was read ends in blocks of zeros: Python stops anywhere in silence."""
    file = tar.fileobj
    if file is None:
        return
    file.seek(tar.offset)
    end = file.read(tarfile.BLOCKSIZE)
    if len(end) < tarfile.BLOCKSIZE:
        raise tarfile.TarError("it ends without the blocks that end a tar, so files may be missing")
    if end.strip(b"\0"):
        raise tarfile.TarError(f"there is no file where the next one should be, at byte {tar.offset:,}")
    if file.read(PIECE).strip(b"\0"):
        raise tarfile.TarError(f"more follows its end at byte {tar.offset:,}, as if joined by cat")


class _Ranges(io.RawIOBase):
    """An object of a store as a file; a read is one ranged request."""

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        super().__init__()
        self._store, self._info, self._place = store, info, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._info.size}
        self._place = starts[whence] + offset
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self._info.size - self._place))
        buffer[:length] = self._store.read_range(self._info.key, self._place, length)
        self._place += length
        return length


def _note_label(member: _Member, ending: str, tar: tarfile.TarFile, item: tarfile.TarInfo) -> None:
    if item.size > LABEL_BYTES:
        member.problems.append(f"its .{ending} has {item.size:,} bytes, a label's at most {LABEL_BYTES:,}")
        return
    content = tar.extractfile(item)
    if label := _label(ending, content.read() if content else b""):
        member.labels.add(label)


def _label(ending: str, content: bytes) -> str | None:
    """The text of a .cls, or what a .json calls "label": text or a whole number."""
    try:
        text = content.decode()
        label = json.loads(text)["label"] if ending == "json" else text
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_label = isinstance(label, str | int) and not isinstance(label, bool)
    return as_class(str(label)).strip() if is_label else None


def _place(name: str) -> tuple[bool, int, str]:
    """Sort key of a class: numbers in their order, then names."""
    is_number = name.isdecimal() and len(name) < LONGEST_NUMBER
    return not is_number, int(name) if is_number else 0, name


def _split(key: str) -> str:
    """The split that a path names: val/000.tar, imagenet-train-000012.tar."""
    words = re.split(r"[/_.-]", key.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
