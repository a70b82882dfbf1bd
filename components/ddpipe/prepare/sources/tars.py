"""WebDataset tars: files with one name up to the first dot are a sample, <name>.jpg with <name>.cls."""

from __future__ import annotations

import io
import json
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ddpipe.prepare.sources.base import Sample, Survey, refused, sorted_out
from ddpipe.prepare.sources.folder import SPLIT_FOLDERS, files, stamp
from ddpipe.storage import ObjectInfo, Store, open_store

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "pgm")

PIECE = 4 * 2**20
"""Bytes of a tar that one request fetches."""

AT_ONCE = 8
"""Tars that are listed at the same time."""


@dataclass(slots=True)
class _Member:
    """A sample as it is put together."""

    image: str = ""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Tars:
    """All *.tar below a folder or prefix; train…, val… and test… in their paths are splits, if all have one.

    Attributes:
        path: A folder or s3://bucket/prefix.
    """

    path: str

    def survey(self) -> Survey:
        """Walk through the tars once, for names, places and labels."""
        infos = [info for info in files(self.path) if info.key.endswith(".tar")]
        if not infos:
            raise refused(self.path, "it holds no .tar", "Give the folder or prefix of the tars.")
        splits = [_split(info.key) for info in infos]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            listings = list(pool.map(self._listing, infos))
        members = {
            (info.key, split if all(splits) and "train" in splits else "", name): member
            for info, split, listing in zip(infos, splits, listings, strict=True)
            for name, member in listing.items()
        }
        names = {member.label for member in members.values() if member.label is not None}
        classes = sorted(
            names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name)
        )
        labels = {name: label for label, name in enumerate(classes)}
        problems = {f"{key}/{name}": _problem(member) for (key, _, name), member in members.items()}
        samples, unprintable = sorted_out(
            Sample(f"{key}/{name}", labels[member.label], member.image, where=member.image, split=split)
            for (key, split, name), member in members.items()
            if member.label is not None and not problems[f"{key}/{name}"]
        )
        bad = {name: problem for name, problem in problems.items() if problem}
        return Survey(classes=tuple(classes), samples=samples, problems=bad | unprintable)

    def read(self, sample: Sample) -> bytes:
        """The bytes of the tar that are this image."""
        key, start, length, _ = sample.where.rsplit(":", 3)
        return open_store(self.path).read_range(key, int(start), int(length))

    def _listing(self, info: ObjectInfo) -> dict[str, _Member]:
        members: dict[str, _Member] = {}
        try:
            with tarfile.open(fileobj=_buffered(open_store(self.path), info)) as tar:
                for item in tar:
                    folder, slash, base = item.name.rpartition("/")
                    name, _, ending = base.partition(".")
                    if item.isreg() and name:
                        member = members.setdefault(f"{folder}{slash}{name}", _Member())
                        if ending.lower() in IMAGES:
                            member.image = f"{info.key}:{item.offset_data}:{item.size}:{stamp(info)}"
                        elif ending in {"cls", "json"}:
                            content = tar.extractfile(item)
                            member.label = _label(ending, content.read() if content else b"")
        except (tarfile.TarError, EOFError) as error:
            which = f"{self.path}/{info.key}"
            raise refused(which, f"it is no whole tar: {error}", "Get the tar again.") from error
        return members


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
        self._place = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._info.size}[whence]
        )
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self._info.size - self._place))
        buffer[:length] = self._store.read_range(self._info.key, self._place, length)
        self._place += length
        return length


def _buffered(store: Store, info: ObjectInfo) -> io.BufferedReader:
    return io.BufferedReader(_Ranges(store, info), PIECE)


def _label(ending: str, content: bytes) -> str | None:
    """The text of a .cls, or what a .json calls "label"."""
    try:
        text = content.decode()
        return str(json.loads(text)["label"]) if ending == "json" else text.strip() or None
    except (ValueError, KeyError, TypeError):
        return None


def _problem(member: _Member) -> str:
    if not member.image:
        return f"it has no image ({', '.join(IMAGES)})"
    return "" if member.label is not None else "it has no label: a .cls, or a .json with a label"


def _split(key: str) -> str:
    """The split that a path tells: val/000.tar, imagenet-train-000012.tar."""
    words = re.split(r"[/_.-]", key.lower())
    return next((SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS), "")
