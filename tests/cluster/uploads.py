"""Raw data in the cluster's bucket."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tiles import tiles
from xrays import xrays

from ddpipe.storage import open_store


def upload_photographs(tar: Path, uri: str, per_class: int) -> None:
    """The first images of each class of a tar of <train|test>/<class>/<image>, one folder per class."""
    store, counts = open_store(uri), dict[str, int]()
    with tarfile.open(tar) as members:
        for member in members:
            split, _, name = member.name.removeprefix("./").partition("/")
            kind = name.partition("/")[0]
            if member.isfile() and split == "train" and counts.get(kind, 0) < per_class:
                counts[kind] = counts.get(kind, 0) + 1
                file = members.extractfile(member)
                assert file
                store.write(name, file.read())


KAGGLE = {"image_column": "StudyInstanceUID", "group_column": "PatientID"}
"""The columns of the table of `upload_xrays`."""


def upload_xrays(folder: Path, uri: str) -> None:
    """A table and images as RANZCR CLiP has them; `folder` is where they are made."""
    xrays(folder)
    _upload(folder, uri)


def upload_tiles(folder: Path, uri: str, count: int) -> None:
    """So many photographs of each of two classes; `folder` is where they are made."""
    tiles(folder, count)
    _upload(folder, uri)


def _upload(folder: Path, uri: str) -> None:
    store = open_store(uri)
    for path in folder.rglob("*.*"):
        store.write(path.relative_to(folder).as_posix(), path.read_bytes())
