"""Unpacking the archives of these tests, with every Python from 3.11.0 on."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """All files of a tar that is our own."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4; later ones warn without it
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)  # noqa: S202 - our own
