"""A packaged model that answers: image files in, classes with probabilities out, without torch.

    model = load_model("runs/first/model")
    for prediction in model.predict(["a.png", "b.dcm"]):
        print(prediction.image, prediction.answer, prediction.probabilities)

The package may come from a bucket that others can write to: every file that is used is compared with its
hash, and what its signature says is compared with what the network takes and gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike, fspath
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.prefetch import prefetched
from ddpipe.errors import ParameterError
from ddpipe.model.evaluation import corrupt, read_json
from ddpipe.model.package import FORMAT, ONNX, SIGNATURE, Signature
from ddpipe.model.session import Session
from ddpipe.processes.machine import cpus
from ddpipe.serve.files import File
from ddpipe.serve.prediction import Prediction, answers
from ddpipe.sources.base import Unreadable
from ddpipe.sources.preprocess import Preprocessor

Given: TypeAlias = "str | PathLike[str] | bytes | NDArray[np.uint8]"
"""An image: a path or s3:// URI, the content of a file, or pixels of the model's own shape."""

BATCH = 32
"""Images that the network sees at a time."""

BATCH_PIXELS = 2**22
"""Pixels of a batch at most, so that large images need no more memory than small ones."""

READERS = 8
"""Threads that read and decode, at least: reading from a bucket is mostly waiting."""


class _Read(NamedTuple):
    """An image as the network takes it, or why it cannot be read."""

    name: str
    pixels: NDArray[np.uint8] | None
    warnings: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that answers; safe to use from several threads.

    Attributes:
        uri: Where its package lies.
        version: SHA-256 of its ONNX file.
        signature: What it takes and gives.
        session: Its network.
    """

    uri: str
    version: str
    signature: Signature
    session: Session

    def predict(self, images: Iterable[Given]) -> list[Prediction]:
        """Answer for each image, in their order; one that cannot be read gets a `problem`, not an answer.

        Args:
            images: Paths, s3:// URIs, contents of files, or arrays of the model's own shape (uint8).
        """
        given = [_given(image) for image in images]
        if len(given) == 1:  # as servers are asked: starting threads and waiting for them would take longer
            return list(self._answered([self._read(self._preprocessor, given[0])]))
        return list(self.stream(given))

    def stream(self, files: Iterable[File | NDArray[np.uint8]]) -> Iterator[Prediction]:
        """The same for any number of images, of which a few are in memory at a time.

        Args:
            files: Image files, or pixels of the model's own shape.

        Raises:
            StoreError: Nothing in a bucket can be read.
            ParameterError: Pixels have another shape or type.
        """
        height, width, _ = self.signature.shape
        size = max(1, min(BATCH, BATCH_PIXELS // (height * width)))
        preprocessor = self._preprocessor
        threads = max(READERS, cpus())
        read = prefetched(
            partial(self._read, preprocessor), files, threads=threads, ahead=2 * max(size, threads)
        )
        while batch := list(islice(read, size)):
            yield from self._answered(batch)

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits, shape (images, classes), of pixels, shape (images, H, W, C)."""
        return self.session(images)

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

    def _read(self, preprocessor: Preprocessor, file: File | NDArray[np.uint8]) -> _Read:
        if not isinstance(file, File):
            return _Read("array", self._checked(file))
        try:
            data = file.read()
            return _Read(file.name, preprocessor.pixels(data), tuple(preprocessor.unusual(data)))
        except Unreadable as error:
            return _Read(file.name, None, problem=str(error))

    def _checked(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if pixels.dtype != np.uint8 or pixels.shape != self.signature.shape:
            raise ParameterError(
                what="an array is not an image for this model",
                which=self.uri,
                seen=f"it is {pixels.dtype} of shape {pixels.shape}",
                do=f"Give uint8 of shape {self.signature.shape}, or the path or content of an image file.",
            )
        return pixels

    def _answered(self, batch: list[_Read]) -> Iterator[Prediction]:
        pixels = [one.pixels for one in batch if one.pixels is not None]
        found = iter(answers(self.signature, self.logits(np.stack(pixels))) if pixels else ())
        for one in batch:
            if one.pixels is None:
                yield Prediction(image=one.name, problem=one.problem)
            elif said := next(found):
                yield Prediction(
                    image=one.name,
                    answer=said.answer,
                    probabilities=said.probabilities,
                    warnings=one.warnings,
                )
            else:
                yield Prediction(image=one.name, problem="the model gives NaN or infinity for it")


def load_model(uri: str | PathLike[str], threads: int = 0) -> Model:
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
    content = folder.read(ONNX)
    try:
        session = Session(content, threads)
        session.check(signature)
    except ValueError as error:
        raise corrupt(folder, ONNX, str(error), FORMAT) from error
    return Model(folder.store.uri, folder.sha256[ONNX], signature, session)


def _given(image: Given) -> File | NDArray[np.uint8]:
    if isinstance(image, np.ndarray):
        return image
    if isinstance(image, bytes):
        return File("bytes", lambda: image)
    return File.at(fspath(image))
