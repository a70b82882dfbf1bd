"""`ddpipe run|train|evaluate|gate|export`: a run as a whole, and its steps after `ddpipe prepare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from ddpipe import workflow
from ddpipe.api import CHECKED, RUN_GROUPS, planned, resumed_by, train_alone, trained
from ddpipe.commands import SectionedCommand, json_option, print_result, same_command
from ddpipe.commands.options import given_names, options
from ddpipe.commands.results import Classification, CommandOutcome, Document, Page, Scores
from ddpipe.commands.step import step_command
from ddpipe.errors import ParameterError
from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
from ddpipe.steps import EVALUATE, EXPORT, GATE, TRAIN_ANYWHERE
from ddpipe.storage import read_uri
from ddpipe.validation import RunSettings, checked


@click.command("run", cls=SectionedCommand)
@click.argument("path", required=False)
@options(*RUN_GROUPS, without=("run_id",), brief=True)
@json_option
def run_command(path: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report.

    PATH is the raw data: a folder, a file or s3://bucket/prefix, the same as --source-path.
    """
    given = with_path(path, given)
    plan = planned(checked("the run cannot start", CHECKED, given, given_names(given)))
    with resumed_by("run", plan.run, given["run"], same_command()):
        finished = plan.carry_out()
    print_result(finished.to_dict(), finished.text())


def with_path(path: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with the raw data of the argument PATH as their source path."""
    if path and given["source_path"] not in {"", path}:
        raise ParameterError(
            what="the run cannot start",
            which=path,
            seen=f"`source_path` names other data: {given['source_path']}",
            do="Give one of them.",
        )
    return {**given, **({"source_path": path} if path else {})}


@step_command(TRAIN_ANYWHERE)
def train_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    run, record = train_alone(given, same_command())
    training, since = run.origin("train").training, run.facts("train").get("since", "")
    done = f"nothing changed since run {since}: trained model reused" if since else "trained"
    return CommandOutcome(
        {"training": training, "unchanged_since": since, **record},
        training,
        f"{done}, {_scores(record['final'])}: {training}",
        values={"training": training},
        shown={"train_metrics": Scores(record["final"])},
        event_files=f"{training}/tensorboard",
    )


def _scores(final: Mapping[str, float]) -> str:
    """What validation found at the end."""
    found = {name: value for name, value in final.items() if name.startswith("validation_")}
    found["validation_loss"] = found.pop("validation_loss")  # after what it stands for
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.items())


@step_command(EVALUATE)
def evaluate_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    run, dataset = trained(given)
    evaluation = workflow.evaluate(run, dataset, given.of(EvaluateSpec), given["network"])
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


@step_command(GATE)
def gate_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    run, dataset = trained(given)
    verdict = workflow.gate(run, dataset, given.of(GateSpec))
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


@step_command(EXPORT)
def export_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    from ddpipe.model.package import FORMAT, ONNX, SIGNATURE

    run, dataset = trained(given)
    package = workflow.export(run, dataset, given["network"])
    facts = run.facts("export")
    place = facts.get("version_uri") or run.origin("export").model
    after_gate = ("version", "promoted")
    version: dict[str, Any] = {name: facts[name] for name in after_gate if name in facts}
    known = {
        "uri": place,
        "model_id": package.model_id,
        "framework": "onnx" if ONNX in package.folder.sha256 else "pytorch",
        "format": f"{FORMAT.kind} {FORMAT.schema}",
        **version,
        **({"verdict": run.facts("gate")["decision"]} if version else {}),
    }
    return CommandOutcome(
        {"model": place, **version},
        f"model package: {place}",
        values={"model": place},
        shown={
            "model_package": Document(package.folder.read(SIGNATURE), known),
            "report": Page(read_uri(run.report).decode()),
        },
    )
