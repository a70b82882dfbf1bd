"""The model package: written by export, read by serving, comparison, warm start and the report.

<package>/model.onnx          uint8 images (batch, H, W, C) -> logits, preprocessing inside, any batch size;
                              not there for a function of the user's own that ONNX cannot express
<package>/trained_on.npy      hashes of the ids that it was trained on, see data/index.py
<package>/model.safetensors   weights of `classifier.Classifier`
<package>/signature.json      Signature
<package>/metrics.json        evaluation.Metrics
<package>/reference.json      what it answers to a test pattern, see `pattern_of`
<package>/lineage.json        what it was made from, and with
<package>/README.md           the model card
<package>/package.json        the seal, written last

Packages of before may hold further formats (model.fp16.onnx and others); they are verified, and not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from ddpipe.data.index import TRAINED_ON, Hashes, from_bytes
from ddpipe.data.manifest import printable
from ddpipe.data.npy import to_bytes
from ddpipe.data.typed import typed
from ddpipe.model import VIEWS, ModelNames
from ddpipe.model.evaluation import Metrics, corrupt, read_json
from ddpipe.model.preprocessing import LARGEST_SIDE, Preprocessing
from ddpipe.model.tasks import TASKS, FloatArray
from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

FORMAT = Format("model package", "package.json", schema=3, maker="ddpipe export")

ONNX, WEIGHTS, CARD = "model.onnx", "model.safetensors", "README.md"

SIGNATURE, METRICS, LINEAGE = "signature.json", "metrics.json", "lineage.json"

INPUT, OUTPUT = "images", "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What goes in, what comes out, and how to read it."""

    architecture: str  # name of the network, as `classifier.build` takes it
    shape: tuple[int, int, int]  # height, width and channels of an image
    classes: tuple[str, ...]  # names, in the order of the logits
    # "multiclass": softmax, the largest wins; "multilabel": sigmoid, and every label that reaches its
    # threshold is there
    task: str = "multiclass"
    # Of a multilabel model's labels; None where none could be chosen
    thresholds: tuple[float | None, ...] = ()
    # Over what of an image the ONNX model's logits are the mean, one of `model.VIEWS`; the weights are those
    # of the network alone
    views: str = "plain"
    temperature: float = 1.0  # what logits are divided by before they become probabilities
    # How an image file becomes the input; None in a package from before it was recorded
    preprocessing: Preprocessing | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, enough to call the model without this package."""
        return {
            "architecture": self.architecture,
            "task": self.task,
            "input": {
                "name": INPUT,
                "dtype": "uint8",
                "layout": "NHWC",
                "shape": ["batch", *self.shape],
            },
            "output": {
                "name": OUTPUT,
                "dtype": "float32",
                "shape": ["batch", len(self.classes)],
                "activation": TASKS[self.task].activation,
            },
            "classes": list(self.classes),
            "thresholds": list(self.thresholds),
            "views": self.views,
            "temperature": self.temperature,
            "preprocessing": asdict(self.preprocessing) if self.preprocessing else None,
        }

    def probabilities(self, logits: FloatArray) -> FloatArray:
        """What the model claims; float64, shape (images, classes)."""
        return TASKS[self.task].probabilities(logits / self.temperature)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`; raises ValueError for what no export wrote."""
        if not isinstance(values, Mapping) or not isinstance(values.get("input"), Mapping):
            raise ValueError("it is not a signature")  # noqa: TRY004 - a file's fault
        shape = values["input"].get("shape")
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        signature = typed(cls, {**known, "shape": shape[1:] if isinstance(shape, list) else shape})
        if problems := [*signature._problems(), *_preprocessing_problems(signature)]:  # noqa: SLF001 - its own class
            raise ValueError("; ".join(problems))
        return signature

    def _problems(self) -> Iterator[str]:
        """What no model that was exported says."""
        if not (min(self.shape) >= 1 and max(self.shape) <= LARGEST_SIDE):
            yield f"its shape is {self.shape}"
        if not self.temperature > 0:
            yield f"its temperature is {self.temperature}"
        if self.architecture not in ModelNames():
            yield f"{self.architecture!r} is not the name of a network"
        if self.views not in VIEWS:
            yield f"{self.views!r} is not a name of views"
        if not self.classes or len({*self.classes}) < len(self.classes):
            yield "it has no classes, or one class twice"
        if shown := [name for one in self.classes if (name := printable(one))]:
            yield f"the name of a class holds characters that control a terminal: {shown[0][:80]}"
        if self.task not in TASKS:
            yield f"{self.task!r} is not a task"
        elif len(self.thresholds) != (0 if TASKS[self.task].exclusive else len(self.classes)):
            yield f"it has {len(self.thresholds)} thresholds for {len(self.classes)} classes"


def _preprocessing_problems(signature: Signature) -> Iterator[str]:
    """What about the preprocessing does not fit the shape, or is not known here."""
    if how := signature.preprocessing:
        yield from how.problems()
        if how.reduced_from and min(how.reduced_from) < min(signature.shape[:2]):
            yield f"its images of {how.reduced_from} are not reduced to the shape {signature.shape}"
        if how.side and how.side < max(how.reduced_from or signature.shape[:2]):
            yield f"its images of shorter side {how.side} do not fill the shape {signature.shape}"
        if signature.shape[2] != (1 if how.color == "gray" else 3):
            yield f"its preprocessing gives {how.color} images for {signature.shape[2]} channels"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A model package that was read; the `sha256` of its folder names every file."""

    signature: Signature
    metrics: Metrics
    lineage: Mapping[str, Any]
    folder: Folder

    @property
    def model_id(self) -> str:
        """SHA-256 of the weights: the same weights have the same id wherever they lie."""
        return self.folder.sha256[WEIGHTS]


def publish(
    store: Store,
    *,
    onnx: bytes | None,
    weights: bytes,
    signature: Signature,
    metrics: Metrics,
    lineage: Mapping[str, Any],
    card: str,
    seen: Hashes | None = None,
    pattern: Sequence[float] | None = None,
) -> ModelPackage:
    """Write a package into a folder of its own."""
    files = {
        **({} if onnx is None else {ONNX: onnx}),
        WEIGHTS: weights,
        SIGNATURE: to_json(signature.to_dict()),
        METRICS: to_json(metrics.to_dict()),
        LINEAGE: to_json(lineage),
        CARD: card.encode(),
        **({} if seen is None else {TRAINED_ON: to_bytes(seen)}),
        **({} if pattern is None else {REFERENCE: to_json({"pattern": list(pattern)})}),
    }
    folder = FORMAT.publish(store, files, facts={"dataset_id": lineage["dataset"]["id"]})
    return ModelPackage(signature=signature, metrics=metrics, lineage=lineage, folder=folder)


def seen_by(folder: Folder) -> Hashes | None:
    """The samples that a package's model was trained on; None if it was exported without them."""
    if TRAINED_ON not in folder.sha256:
        return None
    return from_bytes(folder.read(TRAINED_ON), f"{folder.store.uri}/{TRAINED_ON}")


def load_package(uri: str) -> ModelPackage:
    """The package at `uri`, every file of it verified."""
    folder = FORMAT.open(uri)
    if missing := [key for key in (WEIGHTS, SIGNATURE, METRICS, LINEAGE, CARD) if key not in folder.sha256]:
        raise corrupt(folder, FORMAT.seal, f"it does not name {', '.join(missing)}", FORMAT)
    for key in folder.sha256:
        folder.read(key)
    return ModelPackage(
        signature=read_json(folder, SIGNATURE, Signature.from_dict, FORMAT),
        metrics=read_json(folder, METRICS, Metrics.from_dict, FORMAT),
        lineage=read_json(folder, LINEAGE, _object, FORMAT),
        folder=folder,
    )


def _object(values: object) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - a file's fault
    return values


SURROUNDINGS = {
    "run": "DDPIPE_RUN",
    "job": "DDPIPE_JOB",
    "image": "DDPIPE_IMAGE",
    "volumes": "DDPIPE_VOLUMES",
}
"""Facts, and the environment variables that hold them; the pods of a job have them."""


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Run, job, image and volumes of this process, as far as the environment names them."""
    return {name: environment[key] for name, key in SURROUNDINGS.items() if environment.get(key)}


REFERENCE = "reference.json"


def answer_from(values: object) -> tuple[float, ...]:
    """The recorded probabilities of the classes, empty in older packages; raises ValueError for no record."""
    found = values.get("pattern", []) if isinstance(values, Mapping) else None
    if not isinstance(found, list) or not all(type(one) is float and math.isfinite(one) for one in found):
        raise ValueError("it has no probabilities of the test pattern")
    return tuple(found)


def pattern_of(shape: tuple[int, int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A pattern that every program can make: value i is 37 i modulo 251; of shape (1, *shape)."""
    return (np.arange(math.prod(shape)) * 37 % 251).astype(np.uint8).reshape(1, *shape)
