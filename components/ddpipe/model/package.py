"""The model package: written by export, read by whoever serves, compares or reports.

<package>/model.onnx          uint8 images (batch, H, W, C) -> logits, preprocessing inside, any batch size
<package>/model.safetensors   weights of `architectures.Classifier`
<package>/signature.json      Signature
<package>/metrics.json        evaluation.Metrics
<package>/lineage.json        what it was made from, and with
<package>/README.md           the model card
<package>/package.json        the seal, written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ddpipe.model.evaluation import Metrics
from ddpipe.model.tasks import TASKS
from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

FORMAT = Format("model package", "package.json", schema=3, maker="ddpipe export")
ONNX, WEIGHTS, CARD = "model.onnx", "model.safetensors", "README.md"
SIGNATURE, METRICS, LINEAGE = "signature.json", "metrics.json", "lineage.json"
INPUT, OUTPUT = "images", "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What goes in, what comes out, and how to read it.

    Attributes:
        architecture: Name of the network, as `architectures.build` takes it.
        shape: Height, width and channels of an image.
        classes: Names, in the order of the logits.
        task: "multiclass": softmax, the largest is the answer; "multilabel": sigmoid, and every label that
            reaches its threshold is there.
        thresholds: Of a multilabel model's labels; None where none could be chosen.
        views: Over what of an image the ONNX model's logits are the mean, one of `model.VIEWS`; the weights
            are those of the network alone.
    """

    architecture: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    task: str = "multiclass"
    thresholds: tuple[float | None, ...] = ()
    views: str = "plain"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON, that also tell a stranger how to call the model."""
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
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        height, width, channels = values["input"]["shape"][1:]
        return cls(
            architecture=values["architecture"],
            shape=(height, width, channels),
            classes=tuple(values["classes"]),
            task=values["task"],
            thresholds=tuple(values["thresholds"]),
            views=values["views"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A published model.

    Attributes:
        signature: How to call it.
        metrics: How good it is.
        lineage: What it was made from, and with.
        folder: Where it lies; its `sha256` names every file.
    """

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
    onnx: bytes,
    weights: bytes,
    signature: Signature,
    metrics: Metrics,
    lineage: Mapping[str, Any],
    card: str,
) -> ModelPackage:
    """Write a package into a folder of its own."""
    files = {
        ONNX: onnx,
        WEIGHTS: weights,
        SIGNATURE: to_json(signature.to_dict()),
        METRICS: to_json(metrics.to_dict()),
        LINEAGE: to_json(lineage),
        CARD: card.encode(),
    }
    folder = FORMAT.publish(store, files, facts={"dataset_id": lineage["dataset"]["id"]})
    return ModelPackage(signature=signature, metrics=metrics, lineage=lineage, folder=folder)


def load_package(uri: str) -> ModelPackage:
    """The package at `uri`, every file of it verified.

    Raises:
        NoSuchObject: None was finished there.
        CorruptObject: A file is not what was published.
        ParameterError: It has another schema.
    """
    folder = FORMAT.open(uri)
    files = {key: folder.read(key) for key in folder.sha256}
    return ModelPackage(
        signature=Signature.from_dict(json.loads(files[SIGNATURE])),
        metrics=Metrics.from_dict(json.loads(files[METRICS])),
        lineage=json.loads(files[LINEAGE]),
        folder=folder,
    )
