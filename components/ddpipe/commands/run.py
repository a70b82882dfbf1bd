"""`ddpipe run`: the whole pipeline on this machine, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

import click

from ddpipe import workflow
from ddpipe.commands import json_option, tell
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.commands.presets import chosen_recipe, list_presets_option
from ddpipe.data.versions import address
from ddpipe.errors import Interrupted, ParameterError
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.jobs.job import JobOptions, Owner
from ddpipe.parameters import Parameters, parameter, refuse
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.processes.signals import on_stop
from ddpipe.runs import Run, RunOptions
from ddpipe.steps import ReuseOptions, StoreOptions, TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease
from ddpipe.summary import Summary, summary
from ddpipe.train.presets import PresetOptions
from ddpipe.train.recipe import Recipe

_GROUPS = (RunOptions, ReuseOptions, PrepareSpec, PresetOptions, Recipe, EvaluateSpec, StoreOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Parameters):
    """Data that need not be prepared."""

    heading: ClassVar[str] = "Data"

    dataset: str = parameter(
        "",
        "Dataset version to use instead of a source: the URI of its manifest, or its ID in the store or a "
        "unique prefix of it.",
    )


@click.command("run", cls=SectionedCommand)
@options(RunOptions, ReuseOptions, without=("run_id",))
@options(JobOptions, only=("processes",))
@options(Prepared, PrepareSpec, PresetOptions, Recipe, EvaluateSpec, StoreOptions)
@list_presets_option
@json_option
def run_command(**given: Any) -> None:  # noqa: ANN401 - click hands every option by its name
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report."""
    refuse("the run cannot start", [text for group in _GROUPS for text in group.problems_in(given)])
    data, recipe = _data(given), chosen_recipe(given)
    title = data.name if isinstance(data, PrepareSpec) else "run"
    run = Run.named(given["runs"], given["run"] or f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    options, evaluation = TrainOptions.picked(given), EvaluateSpec.picked(given)
    reuse = ReuseOptions.picked(given).reuse
    finished = run_here(run, data, recipe, options, evaluation, reuse=reuse)
    tell(finished.to_dict(), finished.text())


def _data(given: Mapping[str, Any]) -> PrepareSpec | str:
    """What to prepare, or the address of what is prepared.

    Raises:
        ParameterError: Both are given.
        DatasetError: No version has the given id, or several have.
    """
    spec = PrepareSpec.picked(given)
    if not given["dataset"]:
        return spec
    if spec != replace(PrepareSpec(), store=spec.store):
        raise ParameterError(
            what="the run cannot start",
            which=f"dataset {given['dataset']}",
            seen="options for preparing a dataset are given too",
            do="Leave out --dataset, or the options that say how to prepare.",
        )
    return address(given["dataset"], spec.store)


def run_here(
    run: Run,
    data: PrepareSpec | str,
    recipe: Recipe,
    options: TrainOptions,
    evaluation: EvaluateSpec,
    *,
    reuse: bool = False,
) -> Summary:
    """All four steps in this process; training's ranks are processes of their own, which end with this one.

    Args:
        run: Where the results go.
        data: What to prepare, or the address of a dataset version.
        recipe: How to train.
        options: With how many processes.
        evaluation: How to evaluate.
        reuse: Whether to take over the model of an earlier run of the same data, recipe and code.

    Raises:
        DdpipeError: The error of the step that failed.
        ParameterError: Another process works on this run.
        Interrupted: Told to stop (SIGTERM, SIGINT); the same again goes on.
    """
    for folder in (*((data.store,) if isinstance(data, PrepareSpec) else ()), run.uri):
        open_store(folder).check_writable()

    def stop() -> NoReturn:
        raise Interrupted(
            what="the run was interrupted",
            which=run.uri,
            seen="told to stop between two saved states",
            do="Run the same command again to resume from the last one.",
        )

    with on_stop(stop), lease(open_store(run.uri)):
        if isinstance(data, str):
            workflow.take(run, dataset := data)
        else:
            dataset = workflow.prepare(run, data).manifest_uri
        workflow.train(run, dataset, recipe, options, Owner(), reuse=reuse)
        workflow.evaluate(run, dataset, evaluation, recipe.model)
        workflow.export(run, dataset, recipe.model)
    return summary(run)
