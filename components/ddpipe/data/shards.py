"""Shards: files of many images, named by their SHA-256, read memory-mapped.

raw    .npy of uint8 (N, H, W, C): for small images, nothing to decode
jpeg   .tar in WebDataset's layout: for photographs; a global header lists the sizes of its files, so that
the n-th is found without walking through the others
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ddpipe.data import npy
from ddpipe.data.manifest import ColumnRef, Shape, ShardRef
from ddpipe.data.npy import mapped
from ddpipe.errors import DatasetError
from ddpipe.processes.machine import cpus

Images = NDArray[np.uint8]  # shape (samples, height, width, channels)
SHARD_BYTES = 64 * 2**20  # how large a shard may grow: few objects, and still small enough to hold in memory
ENDINGS = {"raw": "npy", "jpeg": "tar"}  # of the files of each kind of shard
SIZES = "ddpipe.sizes"  # key of the list of sizes in a jpeg shard's global header
LARGEST = 2**28  # pixels of an image in a shard; prepare rejects smaller ones as decompression bombs
BLOCK = 512  # a tar is made of blocks of so many bytes


class Shard(Protocol):
    """The images of one shard."""

    def __len__(self) -> int: ...

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """The images with these indices, one by one, each of shape (height, width, channels)."""


def encode_pixels(parts: Sequence[bytes], shape: tuple[int, ...]) -> tuple[ShardRef, bytes]:
    """A raw shard's file, of parts that hold the pixels of some images each; equal images, equal bytes."""
    count = sum(map(len, parts)) // math.prod(shape)
    header = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(header, facts)
    return _named(b"".join([header.getvalue(), *parts]), count, "raw")


def encode_jpegs(files: Sequence[bytes]) -> tuple[ShardRef, bytes]:
    """A jpeg shard's file; the same JPEG files always give the same bytes."""
    sizes = " ".join(str(len(file)) for file in files)
    # The header, file by file, and the end, as tarfile writes them, which copies every file twice.
    parts, member = [tarfile.TarInfo.create_pax_global_header({SIZES: sizes})], tarfile.TarInfo()
    for number, file in enumerate(files):
        member.name, member.size = f"{number:06d}.jpg", len(file)
        parts += member.tobuf(tarfile.USTAR_FORMAT), file, bytes(_padded(len(file)) - len(file))
    written = sum(map(len, parts)) + 2 * BLOCK
    parts.append(bytes(2 * BLOCK - written % -tarfile.RECORDSIZE))
    return _named(b"".join(parts), len(files), "jpeg")


def _named(data: bytes, count: int, kind: str) -> tuple[ShardRef, bytes]:
    return ShardRef(hashlib.sha256(data).hexdigest(), len(data), count, kind), data


def shard_key(shard: ShardRef) -> str:
    """The key of a shard in its store."""
    return f"shards/{shard.sha256}.{ENDINGS[shard.kind]}"


def object_key(item: ShardRef | ColumnRef) -> str:
    """The key of an object that is named by its content."""
    return shard_key(item) if isinstance(item, ShardRef) else f"columns/{item.sha256}.npy"


def verify(path: Path, item: ShardRef | ColumnRef) -> None:
    """Read the whole file once and compare its hash."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != item.sha256:
        raise damaged(path, f"its content has the hash {found}, the manifest says {item.sha256}")


def open_shard(path: Path, shard: ShardRef, shape: tuple[int, int, int]) -> Shard:
    """The images of a shard, each of this shape, memory-mapped: only what is read is loaded."""
    return (JpegShard if shard.kind == "jpeg" else RawShard)(path, shard, shape)


def array_at(path: Path) -> NDArray[Any]:
    """The array in a file of a dataset, of the shape in its header: memory-mapped."""
    data = mapped(path)
    try:
        return npy.array_in(data)
    except ValueError as error:
        raise damaged(path, str(error)) from error


class RawShard:
    """Pixels of one shape."""

    def __init__(self, path: Path, shard: ShardRef, shape: tuple[int, int, int]) -> None:
        images = array_at(path)
        if images.dtype != np.uint8 or images.shape != (shard.count, *shape):
            raise damaged(
                path,
                f"it holds {images.dtype} {images.shape}, the manifest says uint8 {(shard.count, *shape)}",
            )
        self._images: Images = images

    def __len__(self) -> int:
        return len(self._images)

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """Views of the file, each of shape (height, width, channels): nothing is copied."""
        return map(self._images.__getitem__, indices.tolist())


class JpegShard:
    """JPEG files, each at least as large as `shape`; readers get the center."""

    def __init__(self, path: Path, shard: ShardRef, shape: tuple[int, int, int]) -> None:
        self._path, self._shape = path, shape
        self._bytes = mapped(path)
        try:
            self._starts, self._sizes = places_in(self._bytes, shard.count, len(self._bytes))
        except (ValueError, IndexError) as error:
            raise damaged(path, str(error)) from error

    def __len__(self) -> int:
        return len(self._sizes)

    def file(self, index: int) -> bytes:
        """The JPEG file of one image."""
        start = self._starts[index]
        return self._bytes[start : start + self._sizes[index]]

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """The images, each of shape (height, width, channels), decoded on all CPUs."""
        return _decoders().map(self._decoded, indices)

    def _decoded(self, index: int) -> Images:
        try:
            return cropped(self.file(index), self._shape)
        except ValueError as error:
            raise damaged(self._path, f"image {index}: {error}") from error


# Threads, because the decoder releases Python's lock.
_decoders = cache(lambda: ThreadPoolExecutor(cpus(), thread_name_prefix="decode"))


def cropped(jpeg: bytes, shape: tuple[int, int, int]) -> Images:
    """The center of a JPEG, of this shape; raises `ValueError` if, by its header, there is none."""
    height, width, channels = shape
    import simplejpeg  # noqa: PLC0415 - not in the launcher image, which reads the ids of samples only

    rows, columns, *_ = simplejpeg.decode_jpeg_header(jpeg)
    if rows < height or columns < width or rows * columns > LARGEST:
        raise ValueError(f"it has {columns}x{rows} pixels, the manifest says {width}x{height}")
    image: Images = simplejpeg.decode_jpeg(jpeg, "GRAY" if channels == 1 else "RGB")
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def places_in(data: mmap.mmap | bytes, count: int, end: int) -> tuple[list[int], list[int]]:
    """Start and size of so many files before `end`, from the global header that a jpeg shard begins with."""
    if data[156:157] != tarfile.XGLTYPE:
        raise ValueError("it is not a jpeg shard")
    length = int(data[124:135], 8)
    _, _, sizes = data[BLOCK : BLOCK + length].partition(f" {SIZES}=".encode())
    listed = [int(size) for size in sizes.split()]
    starts, place = [], BLOCK + _padded(length)
    for size in listed:
        starts.append(place + BLOCK)
        place += BLOCK + _padded(size)
    if len(listed) != count or min(listed) < 0 or starts[-1] + listed[-1] > end:
        raise ValueError(f"it lists {len(listed)} images, the manifest {count}")
    return starts, listed


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def damaged(path: Path | str, seen: str) -> DatasetError:
    """The error of a file that is not what the manifest says."""
    return DatasetError(
        what="a file of a dataset is damaged",
        which=str(path),
        seen=seen,
        do="Run the same `ddpipe prepare` again with --verify: it replaces damaged shards.",
    )


KEPT = 256 * 2**20  # bytes of a split's reduced images in memory: small sets are read hundreds of times


def working_shape(shape: Shape, resolution: int) -> Shape:
    """The shape in which a network sees images: the shorter side at most `resolution`; 0 changes nothing."""
    height, width, channels = shape
    share = resolution / min(height, width)
    return shape if not 0 < share < 1 else (round(height * share), round(width * share), channels)


def reduced(shards: Sequence[Shard], shape: Shape) -> list[Shard]:
    """The images of a split, reduced to a shape (height, width, channels) of the same proportions."""
    keep = sum(map(len, shards)) * math.prod(shape) <= KEPT
    return [Reduced(shard, shape, keep=keep) for shard in shards]


class Reduced:
    """The reduced images of one shard; for one thread, if they are kept."""

    def __init__(self, shard: Shard, shape: Shape, *, keep: bool) -> None:
        self._shard, self._shape = shard, shape
        count = len(shard) if keep else 0
        self._kept = np.empty((count, *shape), np.uint8)
        self._is_kept = np.zeros(count, np.bool_)

    def __len__(self) -> int:
        return len(self._shard)

    def each(self, indices: NDArray[np.int64]) -> Iterable[Images]:
        """The images with these indices, one by one, each of shape (height, width, channels)."""
        if not len(self._kept):
            return (reduced_image(image, self._shape) for image in self._shard.each(indices))
        missing = np.unique(indices[~self._is_kept[indices]])
        for index, image in zip(missing.tolist(), self._shard.each(missing), strict=True):
            self._kept[index], self._is_kept[index] = reduced_image(image, self._shape), True
        return map(self._kept.__getitem__, indices.tolist())


def reduced_image(image: Images, shape: Shape) -> Images:
    """An image in a smaller shape, by the filter of prepare."""
    height, width, channels = shape
    from PIL import Image  # noqa: PLC0415 - the launcher image, which reads indexes, has no Pillow

    picture = Image.fromarray(image[..., 0] if channels == 1 else np.ascontiguousarray(image))
    small = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(small).reshape(shape)
