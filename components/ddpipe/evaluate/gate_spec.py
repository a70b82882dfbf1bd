"""What the gate asks of a new model: parameters that neither the model nor its scores depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.data.names import DATASET
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter
from ddpipe.spelling import option


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSpec(Parameters):
    """When a new model replaces the champion."""

    what: ClassVar[str] = "the gate cannot decide"
    heading: ClassVar[str] = "Gate"
    others: ClassVar[str] = "gate_options"

    gate_model: str = parameter(
        "",
        "Model of the store that a new version is compared with and may replace, such as digits; empty means "
        "no gate.",
    )
    gate_metric: str = parameter(
        AUTO,
        "Score that decides: auto (accuracy, or macro_auc of labels), accuracy, macro_f1, macro_auc, "
        "macro_average_precision.",
        OneOf((AUTO, "accuracy", "macro_f1", "macro_auc", "macro_average_precision")),
    )
    gate_minimum: float = parameter(
        0.0, "Minimum score of a new model; below it the step fails.", Between(0, 1)
    )
    gate_gain: float = parameter(
        0.0,
        "Minimum gain over the champion: the whole confidence interval of the gain must lie above it. "
        "Negative values accept a model that is certainly not worse by more than that.",
        Between(-1, 1),
    )
    gate_confidence: float = parameter(
        0.95, "Confidence of the two-sided interval of the gain.", Between(0.5, 0.9999)
    )
    gate_class_loss: float = parameter(
        1.0,
        "Maximum drop of a class's recall (a label's AUC) against the champion, for classes with at least 20 "
        "images; 1 accepts any drop.",
        Between(0, 1),
    )
    gate_slice_loss: float = parameter(
        1.0,
        "Maximum drop of a slice's score against the champion, for slices with at least 20 images; 1 accepts "
        "any drop. Slices come from the evaluation's slice_columns.",
        Between(0, 1),
    )

    def conflicts(self) -> Iterator[str]:
        """A name that cannot be a part of a path."""
        if self.gate_model and not DATASET.fullmatch(self.gate_model):
            name = f"{option('gate_model')} is {self.gate_model!r}"
            yield f"{name}, not a name of lower-case letters, digits, '.', '_', '-'"
