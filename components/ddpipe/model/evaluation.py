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
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ddpipe.data.npy import array_of
from ddpipe.data.typed import typed
from ddpipe.errors import CorruptObject
from ddpipe.model import VIEWS
from ddpipe.model.metrics import TITLES
from ddpipe.model.scores import CalibrationBin
from ddpipe.model.tasks import TASKS
from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

T = TypeVar("T")

FORMAT = Format("evaluation", "evaluation.json", schema=3, maker="ddpipe evaluate")
METRICS, PREDICTIONS = "metrics.json", "predictions.npz"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; none where resampling shows no spread, nor for calibration_error."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """One class, or label, against all others; None where the split, or the model, does not define it."""

    name: str  # of the class
    support: int  # samples of the split that show it
    precision: float | None = None  # share of the samples said to show it that do
    recall: float | None = None  # share of the samples that show it that are said to
    f1: float | None = None  # harmonic mean of the two
    auc: float | None = None  # area under the ROC curve
    # Area under the precision-recall curve, as scikit-learn adds it up
    average_precision: float | None = None
    # Multilabel: the probability from which on the label is said to be there, chosen for the best F1 on the
    # validation split
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of the ROC curve, one-vs-rest over all (sample, class) pairs (micro-average), at most 100."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    threshold: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a split says about a model."""

    task: str  # "multiclass" or "multilabel"
    samples: int  # samples in the split
    # By the names in `TITLES`, the task's own in its order, without those that are undefined here. Log loss
    # is in nats, macro averages are over the classes one-vs-rest, calibration error is ECE in 15 bins.
    scores: Mapping[str, Estimate]
    undefined: Mapping[str, str]  # the others, each with the reason
    classes: tuple[ClassScores, ...]  # one by one, in the dataset's order
    # Multiclass: counts; row = true class, column = predicted class. Else empty.
    confusion_matrix: tuple[tuple[int, ...], ...]
    roc: Curve  # for a plot; the area that counts is macro_auc
    calibration: tuple[CalibrationBin, ...]  # the bins that are not empty, by rising confidence
    # The scores of the plain images, if the model was evaluated with more views of each
    plain: Mapping[str, float] = field(default_factory=dict)
    # Then also the headline score on the validation split, of "plain" and of the views by name
    validation: Mapping[str, float] = field(default_factory=dict)
    # How many groups of samples that belong together were resampled for the intervals; 0: each sample is on
    # its own
    groups: int = 0
    # Logits are divided by it before they become probabilities; fitted on validation
    temperature: float = 1.0
    # The scores that it changes, as they were without it; empty if it is 1
    uncalibrated: Mapping[str, float] = field(default_factory=dict)
    before: tuple[CalibrationBin, ...] = ()  # calibration without it, like `calibration`; empty if it is 1
    warnings: tuple[str, ...] = ()  # choices that made this model worse than it could be, in sentences

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """Of each label; None for a multiclass model's classes, and where none could be chosen."""
        return tuple(scores.threshold for scores in self.classes)

    @property
    def headline(self) -> str:
        """The score that a reader sees first, and by which the gate decides unless another one is named."""
        return next(iter(self.scores), TASKS[self.task].scores[0])

    @property
    def commonest(self) -> ClassScores:
        """The class that most samples show: the best answer of who does not look at the image."""
        return max(self.classes, key=lambda one: one.support)

    @property
    def baseline(self) -> dict[str, float]:
        """What the best constant answer scores, as far as that says something of the model."""
        if not TASKS[self.task].exclusive:
            return {"macro_auc": 0.5}
        return {
            "accuracy": self.commonest.support / self.samples,
            "balanced_accuracy": 1 / len(self.classes),
            "macro_auc": 0.5,
        }

    def missing(self) -> list[str]:
        """What could not be scored, and why."""
        return [f"no {name}: {reason}" for name, reason in self.undefined.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`, also after JSON; raises ValueError for what no evaluation wrote."""
        if isinstance(values, dict):  # evaluations of before may have slices, which nothing reads any more
            values = {name: value for name, value in values.items() if name != "slices"}
        metrics = typed(cls, values)
        classes, scores = len(metrics.classes), {*metrics.scores, *metrics.plain, *metrics.uncalibrated}
        if metrics.task not in TASKS:
            raise ValueError(f"task is {metrics.task!r}, not one of {', '.join(TASKS)}")
        if metrics.temperature <= 0:
            raise ValueError(f"its temperature is {metrics.temperature}")
        if metrics.samples < 1 or not classes:
            raise ValueError(f"it counts {metrics.samples} samples and {classes} classes")
        if unknown := sorted(scores - TITLES.keys()):
            raise ValueError(f"{unknown[0]} is not the name of a score")
        rows = [len(row) for row in metrics.confusion_matrix]
        if rows not in ([], [classes] * classes):
            raise ValueError(f"the confusion matrix has rows of {rows[:20]}, not {classes} of {classes}")
        return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was evaluated, on what, and how."""

    training: str  # URI of the training's outputs
    dataset: str  # URI of the dataset's manifest
    dataset_id: str  # of the dataset version
    split: str  # the split that was scored
    model: str  # name of the architecture
    epoch: int  # epochs that the evaluated weights had been trained for
    device: str  # where the logits were computed: "cpu", "cuda"
    processes: int  # how many processes shared the work
    seconds: float  # time for reading the samples and computing the logits
    views: str = "plain"  # over what of an image the logits are the mean, one of `model.VIEWS`


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A published evaluation."""

    subject: Subject
    metrics: Metrics
    folder: Folder

    def headline(self) -> dict[str, float]:
        """The scores without their intervals: for a progress line, or an engine's list of metrics."""
        return {name: score.value for name, score in self.metrics.scores.items()}

    def summary(self) -> str:
        """The scores in one line, with what could not be scored and why."""
        scores = [f"{name} {score.value:.4f}" for name, score in self.metrics.scores.items()]
        samples = f"{self.metrics.samples} {self.subject.split} samples"
        return ", ".join([samples, *scores, *self.metrics.missing()])

    def calibrated(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """`predictions`, of the same shape, with logits divided by the temperature, for probabilities."""
        logits, labels = self.predictions()
        return logits / np.float32(self.metrics.temperature), labels

    def predictions(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Logits, shape (samples, classes), and labels, shape (samples,) or (samples, classes)."""
        samples, classes = self.metrics.samples, len(self.metrics.classes)
        labels = (samples,) if TASKS[self.metrics.task].exclusive else (samples, classes)
        expected = {"logits": (np.float32, (samples, classes)), "labels": (np.int64, labels)}
        try:
            with zipfile.ZipFile(io.BytesIO(self.folder.read(PREDICTIONS))) as archive:
                logits, shown = (_array(archive, name, *facts) for name, facts in expected.items())
        except (ValueError, zipfile.BadZipFile) as error:
            raise corrupt(self.folder, PREDICTIONS, str(error), FORMAT) from error
        return logits, shown


def _array(archive: zipfile.ZipFile, name: str, dtype: type, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """One array of an .npz file, if it has this type and shape."""
    array = array_of(archive, name)
    if (array.shape, array.dtype) != (shape, np.dtype(dtype)):
        raise ValueError(f"{name} are {array.dtype} {array.shape}, not {np.dtype(dtype)} {shape}")
    return array


def publish(
    store: Store,
    subject: Subject,
    metrics: Metrics,
    logits: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
) -> Evaluation:
    """Write the evaluation, of logits of shape (samples, classes)."""
    arrays = io.BytesIO()
    np.savez_compressed(arrays, logits=logits, labels=labels)
    files = {METRICS: to_json(metrics.to_dict()), PREDICTIONS: arrays.getvalue()}
    return Evaluation(
        subject=subject, metrics=metrics, folder=FORMAT.publish(store, files, facts=asdict(subject))
    )


def load_evaluation(uri: str) -> Evaluation:
    """The evaluation at `uri`."""
    folder = FORMAT.open(uri)
    metrics = read_json(folder, METRICS, Metrics.from_dict, FORMAT)
    try:
        subject = typed(Subject, folder.facts)
    except ValueError as error:
        raise corrupt(folder, FORMAT.seal, str(error), FORMAT) from error
    if subject.views not in VIEWS:
        raise corrupt(folder, FORMAT.seal, f"{subject.views!r} is not a name of views", FORMAT)
    return Evaluation(subject=subject, metrics=metrics, folder=folder)


def read_json(folder: Folder, key: str, reader: Callable[[object], T], kind: Format) -> T:
    """A file of a sealed folder, as `reader` reads its JSON."""
    try:
        return reader(json.loads(folder.read(key)))
    except (ValueError, RecursionError) as error:
        raise corrupt(folder, key, str(error), kind) from error


def corrupt(folder: Folder, key: str, seen: str, kind: Format) -> CorruptObject:
    """The error of a file in a sealed folder that is not what its format says."""
    return CorruptObject(
        what=f"a file of a {kind.kind} is malformed",
        which=f"{folder.store.uri}/{key}",
        seen=seen,
        do=f"Create it again with `{kind.maker}`.",
    )
