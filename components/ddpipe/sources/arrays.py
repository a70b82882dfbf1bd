"""Sources that are arrays of pixels: scikit-learn's digits, the idx files of MNIST, the archives of CIFAR."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import re
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.sources.base import UNPACKING, Survey, error_for_source, inflated
from ddpipe.sources.images import wrapped
from ddpipe.sources.listing import listed_files
from ddpipe.sources.sample import Sample
from ddpipe.sources.samples import Samples
from ddpipe.sources.tars import check_end
from ddpipe.storage import open_store, split_uri

LARGEST = 2**30  # bytes that one file of arrays may unpack to
ARCHIVE = (".tar.gz", ".tar")  # how the names of archives end
STAMP = 16  # digits of a hash: 64 bits, so that no change of an image goes unnoticed by accident
BLOCK = 64  # images that share a stamp: a hash for each took a third of a prepare without changes
IDX = b"\0\0\x08"  # how an idx file of bytes begins


@dataclass(frozen=True, slots=True)
class Part:
    """The images of "train" or "test", (N, H, W) or (N, H, W, 3), and their labels, (N,)."""

    split: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Arrays(ABC):
    """Images that are raw pixels; they are held in memory, so this is for small images."""

    @abstractmethod
    def load(self) -> tuple[Sequence[str], Sequence[Part]]:
        """The names of the classes, and all images."""

    def survey(self) -> Survey:
        """Load everything; an image's stamp is a hash of its block. A single part is split by our rule."""
        classes, parts = self._loaded
        samples = [_columns(part, number, given=len(parts) > 1) for number, part in enumerate(parts)]
        shapes = {part.images.shape[1:] for part in parts}
        height, width, channels = (*max(shapes), 1)[:3]
        shape = (height, width, channels) if len(shapes) == 1 else None
        return Survey(classes=tuple(classes), samples=Samples.joined(samples), shape=shape)

    def read(self, sample: Sample) -> bytes:
        """The pixels as an image file."""
        part, index = map(int, sample.where.split("/"))
        return wrapped(self._loaded[1][part].images[index])

    @cached_property
    def _loaded(self) -> tuple[Sequence[str], Sequence[Part]]:
        return self.load()


class Digits(Arrays):
    """The 1,797 handwritten digits built into scikit-learn, 8 by 8 pixels."""

    def load(self) -> tuple[Sequence[str], Sequence[Part]]:
        """Their 17 shades of gray, spread over 0 to 255."""
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import, for this source only

        bunch, shades = load_digits(), 16
        images = np.rint(bunch.images * (255 / shades)).astype(np.uint8)
        return [str(name) for name in bunch.target_names], [Part("digits", images, bunch.target)]


class Idx(Arrays):
    """The four files of MNIST and similar data sets, gzipped or not; a single pair is split by our rule."""

    PAIRS: Mapping[str, str] = {"train": "train", "test": "t10k"}

    def __init__(self, path: str, classes: Sequence[str]) -> None:
        self.path, self.classes = path, classes

    def load(self) -> tuple[Sequence[str], Sequence[Part]]:
        """Parse the files that exist."""
        store, infos = open_store(self.path), listed_files(self.path).infos
        keys = {info.key.removesuffix(".gz").replace(".idx", "-idx"): info.key for info in infos}
        parts = []
        for split, prefix in self.PAIRS.items():
            pair = [keys.get(f"{prefix}-{name}-ubyte") for name in ("images-idx3", "labels-idx1")]
            if pair[0] and pair[1]:
                images, labels = (self._array(key, store.read(key)) for key in pair if key)
                parts.append(self._checked(split, images, labels))
        if not parts:
            raise error_for_source(
                self.path,
                "it holds no train-images-idx3-ubyte with train-labels-idx1-ubyte, nor t10k-…, nor their .gz",
                "Give the folder with the original files.",
            )
        return self.classes, parts

    def _array(self, key: str, data: bytes) -> NDArray[np.uint8]:
        """An idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths, content."""
        if key.endswith(".gz") and not data.startswith(IDX):  # a bucket may have unpacked it already
            data = unpacked(f"{self.path}/{key}", data)
        start = 4 + 4 * sum(data[3:4]) if data.startswith(IDX) else 0
        shape = tuple(np.frombuffer(data[4:start].ljust(start - 4, b"\0"), ">u4").tolist())
        if not shape or math.prod(shape) != len(data) - start:
            size = max(0, len(data) - start)
            raise error_for_source(
                f"{self.path}/{key}",
                f"it is not a complete idx file of bytes: {size} bytes for the shape {shape}",
                "Get the file again.",
            )
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)

    def _checked(self, split: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Part:
        if len(images.shape) != 3 or labels.ndim != 1 or len(images) != len(labels):  # noqa: PLR2004
            seen = f"{split}: images of shape {images.shape} and labels of shape {labels.shape}"
            raise error_for_source(self.path, seen, "Get the files again.")
        if labels.max(initial=0) >= len(self.classes):
            seen = f"{split}: a label is {labels.max()}, there are {len(self.classes)} classes"
            raise error_for_source(self.path, seen, "Get the files again, or choose another source.")
        return Part(split, images, labels.astype(np.int64))


class Cifar(Arrays):
    """The python archive of CIFAR-10 or CIFAR-100, a tar.gz of pickled batches, or what it unpacks to."""

    TRAIN = re.compile(r"(?:.*/)?(?:data_batch_\d|train)")
    TEST = re.compile(r"(?:.*/)?(?:test_batch|test)")
    META = re.compile(r"(?:.*/)?(?:batches\.meta|meta)")

    def __init__(self, path: str, label: str) -> None:
        self.path, self.label = path, label

    def load(self) -> tuple[Sequence[str], Sequence[Part]]:
        """Unpickle without code, and without classes of other libraries, from the pickle."""
        packed = self.path.endswith(ARCHIVE)
        batches = dict(self._members() if packed else self._files())
        names = f"{self.label.removesuffix('s')}_names".encode()
        try:
            classes = [
                text.decode()
                for key, batch in batches.items()
                if self.META.fullmatch(key)
                for text in batch[names]
            ]
            parts = [
                self._part(split, [batches[key] for key in sorted(batches) if pattern.fullmatch(key)])
                for split, pattern in (("train", self.TRAIN), ("test", self.TEST))
            ]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise self._damaged(f"a batch is malformed ({error!r})") from error
        found = {int(label) for part in parts for label in np.unique(part.labels)}
        if wrong := sorted(found - {*range(len(classes))}):
            raise self._damaged(f"it has labels {wrong[:5]}, and {len(classes)} classes")
        return classes, parts

    def _files(self) -> Iterator[tuple[str, Any]]:
        store = open_store(self.path)
        for info in listed_files(self.path).infos:
            if "/" not in info.key and self._is_batch(info.key, info.size):
                try:
                    yield info.key, _unpickled(store.read(info.key))
                except pickle.UnpicklingError as error:
                    raise self._damaged(f"{info.key}: {error}") from error

    def _is_batch(self, name: str, size: int) -> bool:
        """Whether a file holds images or names; rejects one that is too large."""
        if not any(pattern.fullmatch(name) for pattern in (self.TRAIN, self.TEST, self.META)):
            return False
        if size > LARGEST:
            raise self._damaged(f"{name} would unpack to {size} bytes")
        return True

    def _members(self) -> Iterator[tuple[str, Any]]:
        store, name = split_uri(self.path)
        try:
            content = inflated(store.read(name), LARGEST)
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
                for member in archive:
                    if member.isreg() and self._is_batch(member.name, member.size):
                        file = archive.extractfile(member)
                        yield member.name, _unpickled(file.read() if file else b"")
                check_end(archive)
        except (*UNPACKING, pickle.UnpicklingError) as error:
            raise self._damaged(str(error)) from error

    def _part(self, split: str, batches: Sequence[Mapping[bytes, Any]]) -> Part:
        side = 32
        pixels = np.concatenate([batch[b"data"].array for batch in batches]).reshape(-1, 3, side, side)
        labels = np.concatenate([batch[self.label.encode()] for batch in batches]).astype(np.int64)
        if labels.shape != (len(pixels),):
            raise ValueError(f"{split}: {len(pixels)} images, labels of shape {labels.shape}")
        return Part(split, np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels)

    def _damaged(self, seen: str) -> Exception:
        return error_for_source(
            self.path, f"it is not the expected archive: {seen}", "Get the archive again."
        )


class _DType:
    """Stands for numpy's dtype in a pickle, which follows pointers that the file has chosen."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in {"u1", b"u1"}:
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or state[1:] not in {
            (order, None, None, None, -1, -1, 0) for order in ("|", b"|")
        }:
            raise pickle.UnpicklingError(f"it holds an array of an unknown kind: {state!r:.100}")


class _Pixels:
    """Stands for an array of bytes in a pickle, and becomes one from shape and content alone."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, tuple(shape), _DType(), False, bytes(data)) if all(type(size) is int for size in shape):
                if min(shape, default=0) >= 0 and math.prod(shape) == len(data):
                    self.array = np.frombuffer(data, np.uint8).reshape(shape)
                    return
        raise pickle.UnpicklingError("it holds an array that is not of bytes in the order of C")


_NDARRAY = object()  # stands for numpy's ndarray, which a pickle may name but not call


def _reconstruct(kind: object, *_: object) -> _Pixels:
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError("it holds an array of an unknown class")
    return _Pixels()


class _Unpickler(pickle.Unpickler):
    """Allows what stands for an array of bytes, and nothing else: no class of another library is rebuilt."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _DType,
    }

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as inherited
        """What the pickle asks for, if it is allowed."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return self.ALLOWED[module, name]


def _unpickled(data: bytes) -> Any:  # noqa: ANN401 - of any form: it is checked where it is used
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a malformed pickle raises nearly anything
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


def _columns(part: Part, number: int, *, given: bool) -> Samples:
    """The samples of a part; `given`: the source itself splits them."""
    count, split = len(part.images), part.split if given else ""
    stamps = np.empty(count, f"S{STAMP}")
    for start in range(0, count, BLOCK):
        digest = hashlib.sha256(part.images[start : start + BLOCK].data).hexdigest()
        stamps[start : start + BLOCK] = digest[:STAMP].encode()
    numbers = np.arange(count).astype(f"S{len(str(count))}")
    names = np.char.zfill(numbers, len(str(count - 1)))  # they sort in the order of the images
    return Samples(
        ids=np.char.add(f"{split}/".encode(), names) if given else names,
        labels=part.labels,
        stamps=stamps,
        wheres=np.char.add(f"{number}/".encode(), numbers),
        groups=np.full(count, b"", "S1"),
        splits=np.full(count, split.encode(), f"S{max(1, len(split))}"),
    )


def unpacked(which: str, data: bytes) -> bytes:
    """What a gzip file holds."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise error_for_source(which, f"it cannot be unpacked: {error}", "Get the file again.") from error
    if len(content) > LARGEST:
        raise error_for_source(which, f"it unpacks to more than {LARGEST} bytes", "Get the file again.")
    return content
