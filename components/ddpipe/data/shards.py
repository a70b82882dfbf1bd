"""The `raw` shard: a .npy file of uint8 images (N, H, W, C), named by its SHA-256, opened memory-mapped."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.manifest import ShardRef
from ddpipe.errors import DatasetError

Images = NDArray[np.uint8]
"""Shape (samples, height, width, channels)."""

SHARD_BYTES = 64 * 2**20
"""How large a shard may grow: few objects, and still small enough to hold in memory."""


def encode(images: Images) -> tuple[ShardRef, bytes]:
    """A shard's file content; the same images always give the same bytes."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(images), allow_pickle=False)
    data = buffer.getvalue()
    return ShardRef(hashlib.sha256(data).hexdigest(), len(data), len(images)), data


def shard_key(shard: ShardRef) -> str:
    """Where a shard lies in its store."""
    return f"shards/{shard.sha256}.npy"


def verify(path: Path, shard: ShardRef) -> None:
    """Read the whole file once and compare its hash.

    Raises:
        DatasetError: The content is not what the manifest says.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != shard.sha256:
        raise _damaged(path, f"its content has the hash {found}, the manifest says {shard.sha256}")


def open_shard(path: Path, shard: ShardRef, shape: tuple[int, int, int]) -> Images:
    """The images of a shard, memory-mapped: only what is read is loaded.

    Args:
        path: The shard's file.
        shard: What the manifest says of it.
        shape: Height, width and channels of every image.

    Raises:
        DatasetError: The file is no array of that many uint8 images of this shape.
    """
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if images.dtype != np.uint8 or images.shape != (shard.count, *shape):
        raise _damaged(
            path, f"it holds {images.dtype} {images.shape}, the manifest says uint8 {(shard.count, *shape)}"
        )
    return images  # type: ignore[no-any-return]


def _damaged(path: Path, seen: str) -> DatasetError:
    return DatasetError(
        what="a shard is damaged",
        which=str(path),
        seen=seen,
        do="Delete this file and prepare the dataset again: `ddpipe prepare` writes what is missing.",
    )
