"""How to evaluate, and what the gate asks of a new model: parameters that neither of them depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.data.manifest import DATASET
from ddpipe.model import VIEWS
from ddpipe.model.metrics import DECIDING
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter

MOST_COLUMNS = 20  # by which a split is sliced: each takes time, and a reader reads no more


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
    slice_columns: Sequence[str] = parameter(
        [],
        "Columns of a table, such as sex or site: the scores are also given for each of their values, at "
        "most 20 of a column.",
        common=True,
    )
    slice_table: str = parameter(
        "",
        "CSV file with these columns and the names of the images, a path or s3:// URI (default: the table "
        "that the dataset was made from).",
        common=True,
    )

    def conflicts(self) -> Iterator[str]:
        """A table without columns, or too many of them."""
        columns, table = "`slice_columns`", "`slice_table`"
        if self.slice_table and not self.slice_columns:
            yield f"{table} is given without {columns}"
        if len(self.slice_columns) > MOST_COLUMNS or len({*self.slice_columns}) < len(self.slice_columns):
            yield f"{columns} has {len(self.slice_columns)} names: at most {MOST_COLUMNS}, each once"


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
        "Maximum drop against the champion of a class's recall (a label's AUC) or of a slice's score, where "
        "there are at least 20 images; 1 accepts any drop. Slices come from the evaluation's slice_columns.",
        Between(0, 1),
    )

    def conflicts(self) -> Iterator[str]:
        """A name that cannot be a part of a path."""
        if self.gate_model and not DATASET.fullmatch(self.gate_model):
            name = f"`gate_model` is {self.gate_model!r}"
            yield f"{name}, not a name of lower-case letters, digits, '.', '_', '-'"
