"""`ddpipe gate`: an evaluated model and the champion -> promote, keep or fail."""

from __future__ import annotations

from typing import Any

from ddpipe import workflow
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import Page, Scores
from ddpipe.commands.step import step_command
from ddpipe.evaluate.spec import GateSpec
from ddpipe.runs import RunOptions
from ddpipe.steps import GATE
from ddpipe.storage import read_uri


@step_command(GATE)
def gate_command(dataset: str, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run = RunOptions.picked(given).required
    verdict = workflow.gate(run, dataset, GateSpec.picked(given))
    compared = verdict.comparison
    scores = {"candidate": compared.candidate, "champion": compared.champion} if compared else {}
    facts = {
        "decision": verdict.decision,
        "reason": verdict.reason,
        "model": verdict.model,
        "champion": verdict.champion,
        "excluded": verdict.excluded,
        **scores,
    }
    return CommandOutcome(
        facts,
        f"{verdict.decision}: {verdict.reason}",
        values={"decision": verdict.decision, "to_export": "yes" if verdict.promoted else "no"},
        shown={
            "gate_metrics": Scores({f"{name}_{verdict.metric}": value for name, value in scores.items()}),
            "gate_report": Page(read_uri(run.report).decode()),
        },
    )
