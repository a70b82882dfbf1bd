"""How to evaluate: parameters that the model does not depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddpipe.parameters import Between, Parameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec(Parameters):
    """How to score a model, beside the dataset's test split."""

    what: ClassVar[str] = "evaluation cannot start"
    heading: ClassVar[str] = "Evaluation"
    others: ClassVar[str] = "evaluate_options"

    evaluation_batch_size: int = parameter(128, "Samples per forward pass.", Between(1, 1_000_000))
    test_time_flips: bool = parameter(
        default=False,
        help="Average each image's logits with its mirror image's; the exported model does the same.",
    )
