"""Well-known data sets that can be downloaded by name: the files that torchvision uses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ddpipe.data.cache import default_cache, locked
from ddpipe.prepare.sources.base import refused


@dataclass(frozen=True, slots=True)
class Download:
    """The original files of a data set.

    Attributes:
        url: Of their folder.
        md5: By file name; what torchvision checks.
    """

    url: str
    md5: Mapping[str, str]


DOWNLOADS: Mapping[str, Download] = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Download(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "kmnist": Download(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        {
            "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
            "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
            "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
            "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
        },
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ),
}

TIMEOUT = 60.0
"""Seconds without a byte from the server."""

RETRIES = 2

PIECE = 2**20


def downloaded(name: str) -> str:
    """The folder with the files of a data set, downloaded once into this machine's cache.

    What is there already is verified; processes of this machine take turns.

    Raises:
        SourceError: The network says no, or a file is not what it should be.
    """
    import pooch  # noqa: PLC0415 - naming the data sets needs no network

    download, folder = DOWNLOADS[name], default_cache() / "downloads" / name
    files = pooch.create(
        path=folder,
        base_url=f"{download.url}/",
        registry={file: f"md5:{md5}" for file, md5 in download.md5.items()},
        retry_if_failed=RETRIES,
    )
    get = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=PIECE, timeout=TIMEOUT)
    with locked(folder / ".lock"):
        for file in download.md5:
            try:
                files.fetch(file, downloader=get)
            except (OSError, ValueError) as error:  # no network, no space; another file
                raise refused(
                    f"{download.url}/{file}",
                    f"it cannot be downloaded: {error}",
                    f"Get the file {file} on a connected machine, and give its folder as --source-path.",
                ) from error
    return str(folder)
