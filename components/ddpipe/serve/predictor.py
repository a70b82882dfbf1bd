"""A packaged model that answers: images in, classes with probabilities out, without torch.

    model = load_model("runs/first/model")
    model.predict("a.png").answer
    for prediction in model.predict(["a.png", "b.dcm"]):
        print(prediction.image, prediction.answer, prediction.probabilities)

The package may come from a bucket that others can write to: every file that is used is compared with its
hash, and what its signature says is compared with what the network takes and gives.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from os import PathLike, fspath
from threading import Condition
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ddpipe.data.reader import prefetched
from ddpipe.errors import ParameterError
from ddpipe.model.evaluation import read_json
from ddpipe.model.package import FORMAT, ONNX, SIGNATURE, Signature
from ddpipe.model.session import Session, session_of
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray
from ddpipe.processes.machine import cpus
from ddpipe.serve.naming import ImageFile
from ddpipe.sources.base import Unreadable
from ddpipe.sources.images import look
from ddpipe.sources.preprocess import Preprocessor

# An image: a path or s3:// URI, the content of a file, a Pillow image, or pixels.
Given: TypeAlias = "str | PathLike[str] | bytes | Image.Image | NDArray[np.uint8]"
BATCH = 32  # images that the network sees at a time
BATCH_PIXELS = 2**22  # pixels of a batch at most, so that large images need no more memory than small ones
# That are decoded at a time, in all threads; an image with more is decoded alone. About 16 bytes each.
MOST_PIXELS = 2**25
READERS = 8  # threads that read and decode, at least: reading from a bucket is mostly waiting
LOSSLESS = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}  # Pillow's modes that a PNG can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says about one image, or why it says nothing.

    Attributes:
        answer: The most probable class; of a multilabel model all labels that reach their thresholds.
        probabilities: Of every class, in the model's order; empty if the image cannot be read.
        warnings: What about the image is unusual for this model.
        problem: Why the image cannot be read; empty if it was.
    """

    image: str
    answer: tuple[str, ...] = ()
    probabilities: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problem: str = ""

    def best(self, top: int) -> dict[str, float]:
        """The `top` most probable classes, the most probable first; 0: all classes."""
        ranked = sorted(self.probabilities.items(), key=lambda one: -one[1])
        return dict(ranked[: top or None])

    def to_dict(self, top: int = 0) -> dict[str, Any]:
        """Plain values for JSON, with the probabilities of the `top` most probable classes; 0: of all."""
        if self.problem:
            return {"image": self.image, "problem": self.problem}
        return {
            "image": self.image,
            "answer": list(self.answer),
            "probabilities": self.best(top),
            "warnings": list(self.warnings),
        }

    def to_text(self, top: int = 0) -> str:
        """One line for a person: the answer, or the `top` most probable classes."""
        if self.problem:
            return f"{self.image}: cannot be read: {self.problem}"
        shown = self.best(top) if top else {name: self.probabilities[name] for name in self.answer}
        return f"{self.image}: {', '.join(f'{name} {value:.4f}' for name, value in shown.items()) or 'none'}"


class _Read(NamedTuple):
    """An image as the network takes it, or why it cannot be read."""

    name: str
    pixels: NDArray[np.uint8] | None
    warnings: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model that answers; safe to use from several threads. Its version is the SHA-256 of its ONNX file."""

    uri: str
    version: str
    signature: Signature
    session: Session

    @overload
    def predict(self, images: Given) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is one image

    @overload
    def predict(self, images: Iterable[Given]) -> list[Prediction]: ...

    def predict(self, images: Given | Iterable[Given]) -> Prediction | list[Prediction]:
        """Answer for an image, or for each of several; what cannot be read gets a `problem`, not an answer.

        Args:
            images: A path, s3:// URI, content of a file (bytes), Pillow image, or uint8 array of shape (H, W)
                or (H, W, C); or a sequence of these, also as one array of shape (N, H, W, C). An array of the
                model's own shape is used as it is, everything else is prepared as the training images were.

        Returns:
            One prediction for one image; a list, in their order, for a sequence.

        Raises:
            StoreError: Nothing in a bucket can be read.
            ParameterError: Something given is not an image.
        """
        is_several = images.ndim > 3 if isinstance(images, np.ndarray) else isinstance(images, Iterable)  # noqa: PLR2004 - height, width, channels
        if is_several and not isinstance(images, (str, bytes)):
            given = list(images)  # type: ignore[arg-type]  # seen above
            # Servers are asked for one image: starting threads and waiting for them would take longer.
            return [self.predict(given[0])] if len(given) == 1 else list(self.stream(given))
        (answer,) = self._answered([self._read(self._preprocessor, images)])  # type: ignore[arg-type]  # as above
        return answer

    def stream(self, images: Iterable[Given | ImageFile]) -> Iterator[Prediction]:
        """The same for any number of images, of which a few are in memory at a time."""
        height, width, _ = self.signature.shape
        size = max(1, min(BATCH, BATCH_PIXELS // (height * width)))
        threads = max(READERS, cpus())
        read = prefetched(
            partial(self._read, self._preprocessor), images, threads=threads, ahead=2 * max(size, threads)
        )
        while batch := list(islice(read, size)):
            yield from self._answered(batch)

    @property
    def _preprocessor(self) -> Preprocessor:
        if self.signature.preprocessing is None:
            raise ParameterError(
                what="the model cannot be used on image files",
                which=self.uri,
                seen="its signature does not say how a file becomes the input: it is of an earlier version",
                do="Export it again with this version of ddpipe.",
            )
        return Preprocessor(self.signature.shape, self.signature.preprocessing)

    def _read(self, preprocessor: Preprocessor, image: Given | ImageFile) -> _Read:
        shape = self.signature.shape
        # An array of the model's own shape; gray images may lack the axis of channels.
        own = {shape, shape[:2] if shape[2] == 1 else shape}
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape in own:
            return _Read("array", image.reshape(shape))
        file = image if isinstance(image, ImageFile) else self._file(image)
        try:
            data = file.read()
            with _decoding(pixels_of(data)):
                return _Read(file.name, preprocessor.pixels(data), tuple(preprocessor.unusual(data)))
        except Unreadable as error:
            return _Read(file.name, None, problem=str(error))

    def _file(self, image: Given) -> ImageFile:
        match image:
            case str() | PathLike():
                return ImageFile.at(fspath(image))
            case bytes():
                return ImageFile("bytes", lambda: image)
            case Image.Image():
                return ImageFile("image", partial(_as_png, image))
            case np.ndarray(dtype=np.uint8, ndim=2):
                return ImageFile("array", lambda: _as_png(Image.fromarray(image)))
            case np.ndarray(dtype=np.uint8, ndim=3) if image.shape[2] in {1, 3, 4} and image.size:
                pixels = image[:, :, 0] if image.shape[2] == 1 else image
                return ImageFile("array", lambda: _as_png(Image.fromarray(pixels)))
        seen = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else repr(image)[:80]
        raise ParameterError(
            what="this is not an image for the model",
            which=self.uri,
            seen=f"it is {seen}",
            do="Give a path or s3:// URI, the content of an image file, a Pillow image, or uint8 pixels of "
            "shape (height, width) or (height, width, channels).",
        )

    def _answered(self, batch: Sequence[_Read]) -> Iterator[Prediction]:
        pixels = [one.pixels for one in batch if one.pixels is not None]
        found = iter(_answers(self.signature, self.session(np.stack(pixels))) if pixels else ())
        for one in batch:
            if one.pixels is None:
                yield Prediction(image=one.name, problem=one.problem)
            elif said := next(found):
                answer, probabilities = said
                yield Prediction(
                    image=one.name, answer=answer, probabilities=probabilities, warnings=one.warnings
                )
            else:
                yield Prediction(image=one.name, problem="the model gives NaN or infinity for it")


def load_model(uri: str | PathLike[str], threads: int = 0) -> Predictor:
    """The model of a package.

    Args:
        uri: The package: a folder, or s3://bucket/prefix.
        threads: Of the network; 0: one for each CPU.

    Raises:
        NoSuchObject: There is no finished package.
        CorruptObject: A file is not what was published, or no file that an export wrote.
        ParameterError: It is of another version, or has no ONNX model.
    """
    folder = FORMAT.open(fspath(uri))
    signature = read_json(folder, SIGNATURE, Signature.from_dict, FORMAT)
    if ONNX not in folder.sha256:
        raise ParameterError(
            what="the model cannot be used without torch",
            which=folder.store.uri,
            seen=f"it has no {ONNX}: ONNX cannot express the network {signature.architecture}",
            do="Use model.safetensors in PyTorch; the model card shows how.",
        )
    session = session_of(folder, signature, threads)
    return Predictor(folder.store.uri, folder.sha256[ONNX], signature, session)


_room, _decoded = Condition(), 0


@contextmanager
def _decoding(pixels: int) -> Iterator[None]:
    """Wait until so many pixels may be decoded."""
    global _decoded  # noqa: PLW0603 - memory is the process's
    pixels = min(pixels, MOST_PIXELS)
    with _room:
        _room.wait_for(lambda: _decoded + pixels <= MOST_PIXELS)
        _decoded += pixels
    try:
        yield
    finally:
        with _room:
            _decoded -= pixels
            _room.notify_all()


def pixels_of(data: bytes) -> int:
    """How many pixels an image file has, by its header; 0 if it is none."""
    try:
        with Image.open(io.BytesIO(data)) as image:  # `look` asks for EXIF, for which Pillow decodes a PNG
            return image.width * image.height
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        pass
    try:
        height, width, _ = look(data).shape  # of DICOM
    except Unreadable:
        return 0
    return height * width


def _as_png(image: Image.Image) -> bytes:
    """The file that has these pixels, upright: it is prepared as every other file is."""
    upright = ImageOps.exif_transpose(image)
    buffer = io.BytesIO()
    (upright if upright.mode in LOSSLESS else upright.convert("RGB")).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _answers(
    signature: Signature, logits: FloatArray
) -> list[tuple[tuple[str, ...], dict[str, float]] | None]:
    """Answer and probabilities for each row of logits, shape (images, classes); None for NaN or infinity."""
    known: BoolArray = np.asarray(np.isfinite(logits).all(axis=1))
    probabilities = signature.probabilities(np.where(known[:, None], logits, 0))
    decisions = TASKS[signature.task].decisions(probabilities, signature.thresholds)
    return [
        (
            tuple(name for name, chosen in zip(signature.classes, row, strict=True) if chosen),
            dict(zip(signature.classes, claims.tolist(), strict=True)),
        )
        if is_known
        else None
        for is_known, row, claims in zip(known, decisions, probabilities, strict=True)
    ]
