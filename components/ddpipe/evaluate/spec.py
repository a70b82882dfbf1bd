"""How to evaluate: parameters that the model does not depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.model import VIEWS
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter
from ddpipe.spelling import option

MOST_COLUMNS = 20
"""By which a split is sliced: each takes time, and a reader reads no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec(Parameters):
    """How to score a model on the test split of a dataset."""

    what: ClassVar[str] = "evaluation cannot start"
    heading: ClassVar[str] = "Evaluation"
    others: ClassVar[str] = "evaluate_options"

    evaluation_batch_size: int = parameter(
        128, "Samples per forward pass; fewer where the images are large.", Between(1, 1_000_000)
    )
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
        "CSV file with these columns, a path or s3:// URI; its first column names the images as the dataset "
        "does, with or without folder and ending.",
        common=True,
    )

    def conflicts(self) -> Iterator[str]:
        """Columns without a table, or too many of them."""
        columns, table = option("slice_columns"), option("slice_table")
        if bool(self.slice_columns) != bool(self.slice_table):
            yield f"{columns} and {table} need each other, but only one of them is given"
        if len(self.slice_columns) > MOST_COLUMNS or len({*self.slice_columns}) < len(self.slice_columns):
            yield f"{columns} has {len(self.slice_columns)} names: at most {MOST_COLUMNS}, each once"
