"""Commands that work on this machine: each step alone, the whole pipeline, and compiling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ddpipe import workflow
from ddpipe.commands import json_option, kfp_v1, tell, write_option
from ddpipe.data.manifest import store_of
from ddpipe.parameters import Parameter, Parameters, declared
from ddpipe.prepare.prepare import prepare as prepare_step
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run
from ddpipe.storage import read_uri
from ddpipe.train.recipe import Recipe

Command = Callable[..., None]

runs_option = click.option(
    "--runs", default="runs", help="Folder of all runs: s3://bucket/prefix or a folder."
)
run_option = click.option("--run", "run_name", required=True, help="Name of the run.")
dataset_option = click.option(
    "--dataset", required=True, help="Address of the dataset version: the manifest.json that prepare names."
)
processes_option = click.option(
    "--processes", default=1, type=click.IntRange(1, 256), help="Training processes on this machine."
)


def parameter_options(group: type[Parameters]) -> Callable[[Command], Command]:
    """An option for each parameter of a group, as its declaration describes it."""

    def decorated(command: Command) -> Command:
        for item in reversed(declared(group)):
            command = _option(item)(command)
        return command

    return decorated


def _option(item: Parameter) -> Callable[[Command], Command]:
    """A truth value is a flag for people, a value for pipelines: --verify, --verify false."""
    flag: dict[str, Any] = {"is_flag": False, "flag_value": True} if item.kind is bool else {}
    return click.option(
        f"--{item.name.replace('_', '-')}",
        default=item.default,
        type=item.kind,
        show_default=item.default != "",
        help=item.help,
        **flag,
    )


@click.command()
@parameter_options(PrepareSpec)
@click.option("--run", "run_name", help="Name of the run that is going to use it, to be noted there.")
@runs_option
@write_option("run", "training", "dataset", "dataset_id", "ui")
@json_option
def prepare_command(run_name: str | None, runs: str, **source: Any) -> None:  # noqa: ANN401 - click hands every option by its name
    """Bring raw data into a dataset version: decoded once, split, content-addressed."""
    run = Run.named(runs, run_name) if run_name else None
    spec = PrepareSpec.from_dict(source)
    prepared = workflow.prepare(run, spec) if run else prepare_step(spec)
    facts = {
        **({"run": run.name, "training": run.training} if run else {}),
        "dataset": prepared.manifest_uri,
        "dataset_id": prepared.dataset_id,
        "reused": prepared.reused,
        "samples": {name: len(split.sample_ids) for name, split in prepared.manifest.splits.items()},
        "skipped": prepared.skipped,
        "seconds": round(prepared.seconds, 3),
    }

    def page() -> str:
        if run:
            return read_uri(run.data_report).decode()
        return data_report_html(prepared.manifest, store_of(prepared.manifest_uri))

    tell(facts, prepared.manifest_uri, ui=lambda: kfp_v1.views(kfp_v1.page(page())))


@click.command()
@dataset_option
@run_option
@runs_option
@processes_option
@parameter_options(Recipe)
@json_option
def train_command(dataset: str, run_name: str, runs: str, processes: int, **recipe: Any) -> None:  # noqa: ANN401
    """Train on this machine by distributed data parallelism; run again to go on after an interruption."""
    run = Run.named(runs, run_name)
    record = workflow.train(run, dataset, Recipe.from_dict(recipe), processes)
    tell({"training": run.training, **record}, run.training)


@click.command()
@dataset_option
@run_option
@runs_option
@write_option("evaluation", "accuracy", "metrics", "ui")
@json_option
def evaluate_command(dataset: str, run_name: str, runs: str) -> None:
    """Score a run's model on the test split, every sample exactly once."""
    run = Run.named(runs, run_name)
    evaluation = workflow.evaluate(run, dataset)
    scores, result = evaluation.headline(), evaluation.metrics
    tell(
        {"evaluation": run.evaluation, **scores},
        "\n".join(f"{name:18}{score:.4f}" for name, score in scores.items()),
        metrics=lambda: kfp_v1.metrics(scores),
        ui=lambda: kfp_v1.views(
            kfp_v1.page(read_uri(run.report).decode()),
            kfp_v1.confusion_matrix([one.name for one in result.classes], result.confusion_matrix),
            kfp_v1.roc(result.roc.false_positive_rate, result.roc.true_positive_rate, result.roc.threshold),
            kfp_v1.table(
                ("score", "value", "95 % from", "to"),
                [(name, one.value, one.low, one.high) for name, one in result.scores.items()],
            ),
        ),
    )


@click.command()
@dataset_option
@run_option
@runs_option
@write_option("model", "ui")
@json_option
def export_command(dataset: str, run_name: str, runs: str) -> None:
    """Export a run's evaluated model as safetensors and ONNX, checked against the trained one."""
    run = Run.named(runs, run_name)
    workflow.export(run, dataset)
    tell({"model": run.model}, run.model, ui=lambda: kfp_v1.views(kfp_v1.page(read_uri(run.report).decode())))


@click.command()
@click.option(
    "--run", "run_name", help="Name of the run; an unfinished one goes on.  [default: name and date]"
)
@runs_option
@parameter_options(PrepareSpec)
@processes_option
@parameter_options(Recipe)
@json_option
def run_command(run_name: str | None, runs: str, processes: int, **values: Any) -> None:  # noqa: ANN401
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report."""
    from ddpipe.pipelines.local import run_training  # noqa: PLC0415 - only this command needs it

    hyperparameters = {field.name: values.pop(field.name) for field in fields(Recipe)}
    name = PrepareSpec.from_dict(values).name
    recipe = Recipe.from_dict(hyperparameters)
    run = Run.named(runs, run_name or f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    summary = run_training(run, values, recipe, processes)
    tell(summary.to_dict(), summary.text())


@click.command()
@click.option("--output", help="Folder for the packages.  [default: pipelines/compiled]")
@click.option(
    "--claim", default="", help="In the package for KFP 1.x: volume claim for all data, not an object store."
)
@json_option
def compile_command(output: str | None, claim: str) -> None:
    """Compile the pipelines to the packages that are uploaded in the Kubeflow UI."""
    from ddpipe.pipelines.compile import COMPILED, compile_packages, compile_v1  # noqa: PLC0415 - as above

    folder = Path(output) if output else COMPILED
    written = [str(path) for path in (*compile_packages(folder), compile_v1(folder, claim))]
    tell({"packages": written}, "\n".join(written))
