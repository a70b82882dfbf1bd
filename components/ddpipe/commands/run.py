"""`ddpipe run`: the whole pipeline on this machine, one step after the other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from ddpipe import workflow
from ddpipe.commands import json_option, tell
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.commands.presets import chosen_recipe, list_presets_option
from ddpipe.errors import Interrupted
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.launch.job import JobOptions, Owner
from ddpipe.parameters import refuse
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run, RunOptions
from ddpipe.signals import on_stop
from ddpipe.steps import StoreOptions, TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease
from ddpipe.summary import Summary, summary
from ddpipe.train.presets import PresetOptions
from ddpipe.train.recipe import Recipe

_GROUPS = (RunOptions, PrepareSpec, PresetOptions, Recipe, EvaluateSpec, StoreOptions)


@click.command("run", cls=SectionedCommand)
@options(RunOptions, without=("run_id",))
@options(JobOptions, only=("processes",))
@options(PrepareSpec, PresetOptions, Recipe, EvaluateSpec, StoreOptions)
@list_presets_option
@json_option
def run_command(**given: Any) -> None:  # noqa: ANN401 - click hands every option by its name
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report."""
    refuse("the run cannot start", [text for group in _GROUPS for text in group.problems_in(given)])
    spec, recipe = PrepareSpec.picked(given), chosen_recipe(given)
    name = given["run"] or f"{spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    run = Run.named(given["runs"], name)
    finished = run_here(run, spec, recipe, TrainOptions.picked(given), EvaluateSpec.picked(given))
    tell(finished.to_dict(), finished.text())


def run_here(
    run: Run, spec: PrepareSpec, recipe: Recipe, options: TrainOptions, evaluation: EvaluateSpec
) -> Summary:
    """All four steps in this process; training's ranks are processes of their own, which end with this one.

    Raises:
        DdpipeError: The error of the step that failed.
        ParameterError: Another process works on this run.
        Interrupted: Told to stop (SIGTERM, SIGINT); the same again goes on.
    """
    for folder in (spec.store, run.uri):
        open_store(folder).check_writable()

    def stop() -> NoReturn:
        raise Interrupted(
            what="the run was interrupted",
            which=run.uri,
            seen="told to stop between two saved states",
            do="Run the same command again to resume from the last one.",
        )

    with on_stop(stop), lease(open_store(run.uri)):
        dataset = workflow.prepare(run, spec).manifest_uri
        workflow.train(run, dataset, recipe, options, Owner())
        workflow.evaluate(run, dataset, evaluation)
        workflow.export(run, dataset)
    return summary(run)
