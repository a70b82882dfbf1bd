"""`ddpipe evaluate`: a trained model -> how good it is."""

from __future__ import annotations

import math
from typing import Any

from ddpipe import workflow
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import Classification, Page, Scores
from ddpipe.commands.step import step_command
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.runs import RunOptions
from ddpipe.steps import EVALUATE
from ddpipe.storage import read_uri


@step_command(EVALUATE)
def evaluate_command(dataset: str, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run = RunOptions.picked(given).required
    evaluation = workflow.evaluate(run, dataset, EvaluateSpec.picked(given), given["network"])
    scores, result, place = evaluation.headline(), evaluation.metrics, run.origin("evaluate").evaluation
    return CommandOutcome(
        {"evaluation": place, **scores},
        "\n".join(f"{name:18}{score:.4f}" for name, score in scores.items()),
        "on the test split: " + ", ".join(f"{name} {score:.4f}" for name, score in scores.items()),
        values={"evaluation": place, "score": next(iter(scores.values()), math.nan)},
        shown={
            "evaluation_report": Page(read_uri(run.report).decode()),
            "test_metrics": Scores(scores),
            "roc_and_confusion": Classification(
                [one.name for one in result.classes],
                result.confusion_matrix,
                result.roc.false_positive_rate,
                result.roc.true_positive_rate,
                result.roc.threshold,
            ),
        },
    )
