"""How to evaluate: parameters that the model does not depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddpipe.model import AUTO, VIEWS
from ddpipe.parameters import Between, OneOf, Parameters, parameter


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
