"""How to evaluate, and what the gate asks of a new model: parameters that neither of them depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.data.manifest import DATASET
from ddpipe.model import VIEWS
from ddpipe.model.metrics import DECIDING
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec(Parameters):
    """How to score a model on the test split of a dataset."""

    what: ClassVar[str] = "evaluation cannot start"
    heading: ClassVar[str] = "Evaluation"
    others: ClassVar[str] = "evaluate_options"

    test_time_views: str = parameter(
        AUTO,
        "Views of each image whose logits are averaged, also by the exported model: plain (one), flips "
        "(two), flips-and-shifts (six), or auto (what the training chose by kind of image).",
        OneOf((AUTO, *VIEWS)),
    )


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
        form="gate_model",
    )
    gate_metric: str = parameter(
        AUTO,
        "Score that decides; auto is accuracy, balanced_accuracy with a rare class, or macro_auc of labels.",
        OneOf((AUTO, *DECIDING)),
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
    gate_drop: float = parameter(
        1.0,
        "Maximum drop against the champion of a class's recall (a label's AUC), where "
        "there are at least 20 images; 1 accepts any drop.",
        Between(0, 1),
    )

    def conflicts(self) -> Iterator[str]:
        """A name that cannot be a part of a path."""
        if self.gate_model and not DATASET.fullmatch(self.gate_model):
            name = f"`gate_model` is {self.gate_model!r}"
            yield f"{name}, not a name of lower-case letters, digits, '.', '_', '-'"
