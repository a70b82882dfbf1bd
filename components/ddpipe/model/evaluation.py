"""What an evaluation leaves behind: written by evaluate, read by export and the report.

<evaluation>/metrics.json      Metrics
<evaluation>/predictions.npz   logits float32 (samples, classes); labels int64 (samples,), or of a multilabel
                               dataset (samples, classes); without pickle; row i is the i-th sample of the
                               split in the dataset's manifest
<evaluation>/evaluation.json   the seal, written last: what was evaluated on what
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

FORMAT = Format("evaluation", "evaluation.json", schema=3, maker="ddpipe evaluate")
METRICS, PREDICTIONS = "metrics.json", "predictions.npz"

TITLES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "log_loss": "log loss",
    "macro_auc": "macro AUC",
    "macro_average_precision": "macro average precision",
    "calibration_error": "calibration error",
}
"""The scores, as people write them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval.

    There is none where resampling shows no spread (nothing was wrong), nor for calibration_error: its
    resamples lie above it, as chance gaps in small bins only ever add.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """One class, or label, against all others; None where the split, or the model, cannot tell.

    Attributes:
        name: Of the class.
        support: Samples of the split that show it.
        precision: Share of the samples said to show it that do.
        recall: Share of the samples that show it that are said to.
        f1: Harmonic mean of the two.
        auc: Area under the ROC curve.
        average_precision: Area under the precision-recall curve, as scikit-learn adds it up.
        threshold: Multilabel: the probability from which on the label is said to be there, chosen for the
            best F1 on the validation split.
    """

    name: str
    support: int
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    auc: float | None = None
    average_precision: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of the ROC curve, one-vs-rest over all (sample, class) pairs (micro-average), at most 100."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    threshold: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """What became of the model's claims of about the same probability.

    Attributes:
        confidence: Mean probability that was claimed.
        frequency: How often it came true.
        count: Claims in this bin.
    """

    confidence: float
    frequency: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a split says about a model.

    Attributes:
        task: "multiclass" or "multilabel".
        samples: Samples in the split.
        scores: By the names in `TITLES`, the task's own in its order, without those that are undefined here.
            Log loss is in nats, macro averages are over the classes one-vs-rest, calibration error is ECE in
            15 bins.
        undefined: The others, each with the reason.
        classes: One by one, in the dataset's order.
        confusion_matrix: Multiclass: counts; row = true class, column = predicted class. Else empty.
        roc: For a plot; the area that counts is macro_auc.
        calibration: The bins that are not empty, by rising confidence.
        plain: The scores of the plain images, if the model was evaluated with more views of each.
    """

    task: str
    samples: int
    scores: Mapping[str, Estimate]
    undefined: Mapping[str, str]
    classes: tuple[ClassScores, ...]
    confusion_matrix: tuple[tuple[int, ...], ...]
    roc: Curve
    calibration: tuple[CalibrationBin, ...]
    plain: Mapping[str, float] = field(default_factory=dict)

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """Of each label; None for a multiclass model's classes, and where none could be chosen."""
        return tuple(scores.threshold for scores in self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also after a way through JSON."""
        return cls(
            task=values["task"],
            samples=values["samples"],
            scores={name: Estimate(**score) for name, score in values["scores"].items()},
            undefined=dict(values["undefined"]),
            classes=tuple(ClassScores(**scores) for scores in values["classes"]),
            confusion_matrix=tuple(tuple(row) for row in values["confusion_matrix"]),
            roc=Curve(**{name: tuple(points) for name, points in values["roc"].items()}),
            calibration=tuple(CalibrationBin(**one) for one in values["calibration"]),
            plain=dict(values["plain"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was evaluated, on what, and how.

    Attributes:
        training: URI of the training's outputs.
        dataset: URI of the dataset's manifest.
        dataset_id: Of the dataset version.
        split: The split that was scored.
        model: Name of the architecture.
        epoch: Epochs that the evaluated weights had been trained for.
        device: Where the logits were computed: "cpu", "cuda".
        processes: How many processes shared the work.
        seconds: Time for reading the samples and computing the logits.
        views: Over what of an image the logits are the mean, one of `model.VIEWS`.
    """

    training: str
    dataset: str
    dataset_id: str
    split: str
    model: str
    epoch: int
    device: str
    processes: int
    seconds: float
    views: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A published evaluation.

    Attributes:
        subject: What was evaluated.
        metrics: The result.
        folder: Where it lies.
    """

    subject: Subject
    metrics: Metrics
    folder: Folder

    def headline(self) -> dict[str, float]:
        """The scores without their intervals: for a progress line, or an engine's list of metrics."""
        return {name: score.value for name, score in self.metrics.scores.items()}

    def summary(self) -> str:
        """The scores in one line, with what could not be scored and why."""
        scores = [f"{name} {score.value:.4f}" for name, score in self.metrics.scores.items()]
        missing = [f"no {name}: {reason}" for name, reason in self.metrics.undefined.items()]
        return ", ".join([f"{self.metrics.samples} {self.subject.split} samples", *scores, *missing])

    def predictions(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Logits and labels of all samples, of the shapes told above; raises `CorruptObject`."""
        with np.load(io.BytesIO(self.folder.read(PREDICTIONS)), allow_pickle=False) as arrays:
            return arrays["logits"], arrays["labels"]


def publish(
    store: Store,
    subject: Subject,
    metrics: Metrics,
    logits: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
) -> Evaluation:
    """Write the evaluation into a folder of its own."""
    arrays = io.BytesIO()
    np.savez_compressed(arrays, logits=logits, labels=labels)
    files = {METRICS: to_json(metrics.to_dict()), PREDICTIONS: arrays.getvalue()}
    return Evaluation(
        subject=subject, metrics=metrics, folder=FORMAT.publish(store, files, facts=asdict(subject))
    )


def load_evaluation(uri: str) -> Evaluation:
    """The evaluation at `uri`.

    Raises:
        NoSuchObject: None was finished there.
        CorruptObject: A file is not what was published.
        ParameterError: It has another schema.
    """
    folder = FORMAT.open(uri)
    return Evaluation(
        subject=Subject(**folder.facts),
        metrics=Metrics.from_dict(json.loads(folder.read(METRICS))),
        folder=folder,
    )
