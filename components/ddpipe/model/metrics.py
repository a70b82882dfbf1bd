"""The table of metrics: one entry is all that report, gate, early stopping and help know of a metric.

To add one, add its entry to the table below. The first metric of a task, in the order of the table, is its
headline: models of the task are compared by it. Forms show the names where numpy is not installed (launcher),
so that this module imports it where it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ddpipe.model.scores import BoolArray, CalibrationBin, FloatArray, IntArray, Statistic, Thresholds


class Question(Protocol):
    """What is needed of a task (tasks.py), which in turn needs the table."""

    @property
    def exclusive(self) -> bool: ...  # noqa: D102 - as there
    def probabilities(self, logits: FloatArray, /) -> FloatArray: ...  # noqa: D102
    def truth(self, labels: IntArray, classes: int, /) -> BoolArray: ...  # noqa: D102
    def decisions(self, probabilities: FloatArray, thresholds: Thresholds, /) -> BoolArray: ...  # noqa: D102
    def losses(self, probabilities: FloatArray, truth: BoolArray, /) -> FloatArray: ...  # noqa: D102
    def claims(self, probabilities: FloatArray, truth: BoolArray, /) -> tuple[FloatArray, BoolArray]: ...  # noqa: D102


@dataclass(frozen=True)
class Answers:
    """A split's samples (rows) by classes (columns)."""

    task: Question
    truth: BoolArray  # whether the sample shows the class
    probabilities: FloatArray  # that it does, as the model sees it
    decisions: BoolArray  # whether the model says that it does
    uncut: BoolArray  # shape (classes,): labels without a threshold, of which the model says nothing

    @classmethod
    def of(cls, task: Question, logits: FloatArray, labels: IntArray, thresholds: Thresholds) -> Answers:
        """Logits and labels as the task interprets them.

        Args:
            task: Of the dataset.
            logits: Shape (samples, classes), finite.
            labels: Multiclass: class indices, shape (samples,). Multilabel: 0 or 1, shape (samples, classes).
            thresholds: Multilabel: probability from which each label counts as present. Multiclass: not used.
        """
        probabilities = task.probabilities(logits)
        return cls.judged(task, probabilities, task.truth(labels, logits.shape[1]), thresholds)

    @classmethod
    def judged(
        cls, task: Question, probabilities: FloatArray, truth: BoolArray, thresholds: Thresholds
    ) -> Answers:
        """What was judged, from scores instead of logits.

        Args:
            task: Of the dataset.
            probabilities: Shape (samples, classes); of scores only the order counts.
            truth: Shape (samples, classes).
            thresholds: As for `of`.
        """
        import numpy as np  # noqa: PLC0415 - see above

        uncut = np.array([not task.exclusive and one is None for one in thresholds])
        return cls(task, truth, probabilities, task.decisions(probabilities, thresholds), uncut)

    @property
    def right(self) -> BoolArray:
        """Whether a sample's decisions are all right, shape (samples,)."""
        same: BoolArray = (self.truth == self.decisions).all(axis=1)
        return same

    @property
    def losses(self) -> FloatArray:
        """Cross-entropy of each sample in nats, shape (samples,)."""
        return self.task.losses(self.probabilities, self.truth)

    @cached_property
    def bins(self) -> tuple[CalibrationBin, ...]:
        """How often predictions of about the same probability are right."""
        found: tuple[CalibrationBin, ...] = _scores().calibration(
            *self.task.claims(self.probabilities, self.truth)
        )
        return found

    @cached_property
    def aucs(self) -> tuple[float | None, ...]:
        """Of each class; None where these samples define none."""
        found: tuple[float | None, ...] = _scores().class_aucs(self.probabilities, self.truth)
        return found

    @cached_property
    def average_precisions(self) -> tuple[float | None, ...]:
        """Likewise."""
        found: tuple[float | None, ...] = _scores().class_precisions(self.probabilities, self.truth)
        return found

    def of_samples(self, chosen: BoolArray) -> Answers:
        """These answers to some of the samples, which `chosen` marks, shape (samples,)."""
        rows = {name: getattr(self, name)[chosen] for name in ("truth", "probabilities", "decisions")}
        return replace(self, **rows)


Gaps = Mapping[str, Callable[[Answers], Any]]
"""Why a split does not define a metric: text for the names of the classes that an array of bool marks."""

MULTICLASS, MULTILABEL = "multiclass", "multilabel"

_ABSENT: Gaps = {"no sample of {} in this split": lambda answers: ~answers.truth.any(axis=0)}
_ONE_KIND: Gaps = {
    **_ABSENT,
    "no sample without {} in this split": lambda answers: answers.truth.all(axis=0),
}
_NO_DECISION: Gaps = {
    "no sample of {} in this split": lambda answers: (
        ~answers.uncut & ~(answers.truth | answers.decisions).any(axis=0)
    ),
    "no sample of {} in the validation split to choose a threshold by": lambda answers: answers.uncut,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A way to judge a model."""

    name: str
    title: str
    # Its value for many resamples at once; None: it has no interval, and decides nothing
    statistic: Callable[[Answers], Statistic] | None = None
    # On all samples, where a library computes it, or where there is no statistic
    value: Callable[[Answers], float] | None = None
    undefined: Gaps = field(default_factory=dict)  # why a split does not define it
    higher_is_better: bool = True  # otherwise the lower the better, and it does not decide
    tasks: Sequence[str] = (MULTICLASS, MULTILABEL)  # that have it
    # Whether it is the share of samples that are right: shown in percent, Wilson's interval
    is_share: bool = False

    def missing(self, answers: Answers, classes: Sequence[str]) -> str:
        """Why these answers do not define it; empty if they do."""
        blamed = {
            reason: [repr(name) for name, is_so in zip(classes, which(answers), strict=True) if is_so]
            for reason, which in self.undefined.items()
        }
        return "; ".join(reason.format(", ".join(names)) for reason, names in blamed.items() if names)

    def measured(self, answers: Answers) -> float:
        """Its value on all samples, where it is defined."""
        return float(self.value(answers)) if self.value else self.of(answers)

    def of(self, answers: Answers) -> float:
        """Its value over the classes that occur; NaN if the samples do not define it at all."""
        import numpy as np  # noqa: PLC0415 - see above

        if self.statistic is None:
            raise ValueError(f"{self.name} is only known of all samples")
        return float(self.statistic(answers)(np.ones((len(answers.truth), 1), np.float64))[0])


def _scores() -> Any:  # noqa: ANN401 - a module
    from ddpipe.model import scores  # noqa: PLC0415 - numpy, see above

    return scores


_TABLE = (
    Metric(
        name="accuracy",
        title="accuracy",
        value=lambda answers: answers.right.mean(),
        statistic=lambda answers: _scores().mean(answers.right.astype("float32")),
        tasks=[MULTICLASS],
        is_share=True,
    ),
    Metric(
        name="balanced_accuracy",
        title="balanced accuracy",
        statistic=lambda answers: _scores().macro_ratio(answers.truth & answers.decisions, answers.truth),
        undefined=_ABSENT,
        tasks=[MULTICLASS],
    ),
    Metric(
        name="macro_auc",
        title="macro AUC",
        value=lambda answers: _scores().average(answers.aucs),
        statistic=lambda answers: _scores().resampled_macro_auc(answers.probabilities, answers.truth),
        undefined=_ONE_KIND,
    ),
    Metric(
        name="macro_average_precision",
        title="macro average precision",
        value=lambda answers: _scores().average(answers.average_precisions),
        statistic=lambda answers: _scores().macro_average_precision(answers.probabilities, answers.truth),
        undefined=_ABSENT,
        tasks=[MULTILABEL],
    ),
    Metric(
        name="macro_f1",
        title="macro F1",
        statistic=lambda answers: _scores().macro_f1(answers.decisions, answers.truth),
        undefined=_NO_DECISION,
    ),
    Metric(
        name="log_loss",
        title="log loss",
        value=lambda answers: answers.losses.mean(),
        statistic=lambda answers: _scores().mean(answers.losses),
        higher_is_better=False,
    ),
    Metric(
        name="calibration_error",
        title="calibration error",
        value=lambda answers: _scores().calibration_error(answers.bins),
        higher_is_better=False,
    ),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}  # by name

TITLES: Mapping[str, str] = {metric.name: metric.title for metric in _TABLE}

DECIDING = tuple(metric.name for metric in _TABLE if metric.statistic and metric.higher_is_better)
"""Those by which two models can be compared."""


def metrics_of(task: str) -> tuple[str, ...]:
    """The names of a task's metrics, its headline first."""
    return tuple(metric.name for metric in _TABLE if task in metric.tasks)
