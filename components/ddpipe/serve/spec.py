"""The parameters of predicting; importable without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddpipe.parameters import Between, Parameters, parameter

MOST_CLASSES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(Parameters):
    """What is predicted, and how it is shown."""

    what: ClassVar[str] = "nothing can be predicted"
    heading: ClassVar[str] = "Predictions"

    top: int = parameter(
        0,
        "Show the N most probable classes; 0 shows the answer: the most probable class, or all labels that "
        "reach their thresholds.",
        Between(0, MOST_CLASSES),
        common=True,
    )
    image_column: str = parameter(
        "", "Column of CSV files with the path of the image (default: the first column)."
    )
