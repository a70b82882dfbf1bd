"""`ddpipe tune` on this machine: a search over hyperparameters, to a finished run of its winner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from ddpipe import validation
from ddpipe.commands import json_option, on_option, print_result
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.commands.presets import chosen_recipe, given_names, list_presets_option
from ddpipe.commands.run import (
    LocalRunOptions,
    RunPlan,
    VersionOptions,
    data_of,
    resumed_by,
    with_path,
)
from ddpipe.errors import Interrupted, ParameterError
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.parameters import refuse
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.processes.signals import on_stop
from ddpipe.runs import Run, removed_if_rejected
from ddpipe.search.options import Sampler, SearchOptions
from ddpipe.search.space import checked, parsed
from ddpipe.steps import StoreOptions, TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease
from ddpipe.summary import Summary
from ddpipe.train.presets import PresetOptions
from ddpipe.train.recipe import Recipe
from ddpipe.tune.report import Findings
from ddpipe.tune.study import Study, StudyOptions
from ddpipe.tune.tune import tune

_CHECKED = (SearchOptions, PrepareSpec, PresetOptions, Recipe, TrainOptions, EvaluateSpec, StoreOptions)
_SHOWN = (
    StudyOptions,
    SearchOptions,
    LocalRunOptions,
    VersionOptions,
    PrepareSpec,
    PresetOptions,
    Recipe,
    EvaluateSpec,
    StoreOptions,
)


@on_option
@click.command("tune", cls=SectionedCommand)
@click.argument("path", required=False)
@options(*_SHOWN, without=("run",), brief=True)
@list_presets_option
@json_option
def study_command(path: str | None, **given: Any) -> None:  # noqa: ANN401 - click passes every option by its name
    """Search hyperparameters on this machine: prepare once, train trials, finish the run of the best one.

    PATH is the raw data: a folder, a file or s3://bucket/prefix, the same as --source-path.
    """
    given = with_path(path, given)
    names = given_names(given)
    refuse("the search cannot start", validation.problems(_CHECKED, given, names))
    recipe, search = chosen_recipe(given), SearchOptions.picked(given)
    checked(parsed(search.search), recipe, names)  # before anything is prepared
    _check_sampler(Sampler(search.sampler))
    data = data_of(given)
    title = data.name if isinstance(data, PrepareSpec) else "study"
    study = Study.named(given["study"] or f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    training, evaluation = TrainOptions.picked(given), EvaluateSpec.picked(given)
    with resumed_by("study", Run(str(study.folder)), given["study"]):
        found, finished = tune_here(study, data, recipe, search, training, evaluation)
    print_result({**found.to_dict(), "run": finished.to_dict()}, f"{found.text()}\n{finished.text()}")


def _check_sampler(sampler: Sampler) -> None:
    if sampler.needs_katib:
        raise ParameterError(
            what=SearchOptions.what,
            which=f"`sampler` {sampler}",
            seen="a search on this machine does not have it",
            do=f"Choose {Sampler.TPE} or {Sampler.RANDOM}, or search by Katib with --on katib.",
        )


def tune_here(
    study: Study,
    data: PrepareSpec | str,
    recipe: Recipe,
    search: SearchOptions,
    training: TrainOptions,
    evaluation: EvaluateSpec,
) -> tuple[Findings, Summary]:
    """Search in this process and finish the winner's run; trials are child processes, which end with it."""

    def stop() -> NoReturn:
        raise Interrupted(
            what="the study was interrupted",
            which=str(study.folder),
            seen="a stop signal arrived; its trials are saved",
            do="Run the same command again to continue.",
        )

    folder = str(study.folder)
    with removed_if_rejected(folder):
        open_store(folder).check_writable()
        with on_stop(stop), lease(open_store(folder)):
            dataset = data if isinstance(data, str) else prepare(data).manifest_uri
            found = tune(study, dataset, recipe, search, training.processes_per_pod)
            won = study.run(found.best.number)
            finished = RunPlan(won, dataset, found.recipe, training, evaluation).carry_out()
    return found, finished
