"""`ddpipe tune`: a search over hyperparameters, on this machine or by Katib with jobs as trials.

`--on` decides before anything else is parsed, as the options differ: of a search here, those of `ddpipe run`;
of a search by Katib, those of a job. What is searched, and how, is the same.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ddpipe import validation
from ddpipe.api import (
    RunPlan,
    VersionOptions,
    chosen_recipe,
    data_of,
    resumed_by,
    timed_name,
)
from ddpipe.commands import KATIB, SectionedCommand, json_option, on_option, print_result, same_command
from ddpipe.commands.options import given_names, options
from ddpipe.commands.results import CommandOutcome, Scores
from ddpipe.commands.run_steps import with_path
from ddpipe.commands.step import step_command
from ddpipe.data.manifest import load_manifest
from ddpipe.data.versions import address
from ddpipe.errors import OutputMissing, ParameterError
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.jobs.experiment import RESOURCE, TRIAL, Best, SearchPlan, best_of, counts_of, experiment
from ddpipe.jobs.job import Owner, TrainingJob, training_command
from ddpipe.jobs.options import JobOptions, Restart
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run, RunOptions, working_in
from ddpipe.search import MAX_FAILED, SearchOptions
from ddpipe.search.space import (
    check_katib,
    checked,
    katib_parameters,
    parsed,
    recipe_of_trial,
    trial_template,
)
from ddpipe.steps import TUNE, StoreOptions, TrainOptions
from ddpipe.storage import write_uri
from ddpipe.train.recipe import Recipe, StartingRecipe
from ddpipe.tune.study import BEST, Study, StudyOptions, recipe_text, winner_json
from ddpipe.validation import RunSettings

if TYPE_CHECKING:
    from ddpipe.jobs.backend import Backend
    from ddpipe.kube.api import Cluster
    from ddpipe.kube.resources import Object
    from ddpipe.launching.launcher import Outcome
    from ddpipe.summary import Summary
    from ddpipe.tune.report import Findings


class Tune(click.Command):
    """The command of the place that the arguments name."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the other command; click invokes the command of the context that it gets."""
        command = self.chosen(args)
        command.epilog = self.epilog
        return command.make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """For the reference: those of a search on this machine."""
        return self.chosen([]).get_params(ctx)

    def get_help(self, ctx: click.Context) -> str:
        """Likewise."""
        return self.chosen([]).get_help(ctx)

    @staticmethod
    def chosen(args: list[str]) -> click.Command:
        """The command for these arguments."""
        if f"--on={KATIB}" in args or ("--on", KATIB) in pairwise(args):
            return katib_command
        return study_command


tune_command = Tune("tune", help="Search hyperparameters, on this machine or by Katib.")


@on_option
@step_command(TUNE)
def katib_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    run, search = given.of(RunOptions).required, given.of(SearchOptions)
    dataset, recipe = address(given["dataset"], given["store"]), chosen_recipe(given)
    space = checked(parsed(search.search), recipe, given.given)
    check_katib(space)
    plan = SearchPlan(
        parameters=katib_parameters(space),
        metric=f"val_{TASKS[load_manifest(dataset).task].scores[0]}",
        algorithm=search.sampler,
        seed=recipe.seed,
        early_stopping=search.pruning == "median",
        trials=search.trials,
        parallel=min(search.parallel_trials, search.trials),
        max_failed=MAX_FAILED,
        restart=given["restart"],
    )
    from ddpipe.kube.api import connect

    cluster = connect()
    owner = given.of(Owner)
    job = TrainingJob(
        # Katib mixes up the trials of Experiments of one name in different namespaces.
        # A training of the same run is another step.
        owner=replace(
            owner,
            run_id=owner.run_id or f"{cluster.namespace}-{run.name}",
            step=TUNE.name if owner.step == Owner().step else owner.step,
        ),
        namespace=cluster.namespace,
        command=training_command(
            dataset, f"{run.uri}/trials/{TRIAL}/training", trial_template(space, recipe)
        ),
        **_options(given.of(JobOptions), plan),
    )
    outcome, trial, counts = _searched(job, plan, cluster)
    best, uri = recipe_of_trial(recipe, trial.values, trial.trial), f"{run.uri}/{BEST}"
    write_uri(uri, winner_json(best, trial=trial.trial, metric=plan.metric, score=trial.score))
    ended = ", ".join(f"{count} {word}" for word, count in counts.items())
    values = ", ".join(f"{name}={value}" for name, value in trial.values.items())
    return CommandOutcome(
        {
            "run": run.uri,
            "best": asdict(trial),
            "recipe": best.to_dict(),
            "trials": counts,
            "metric": plan.metric,
            "best_recipe": uri,
            "experiment": asdict(outcome),
        },
        f"{ended}; best {plan.metric}={trial.score:.4f} with {values}: {uri}",
        values={"best_recipe": recipe_text(best)},
        shown={"tune_metrics": Scores({plan.metric: trial.score})},
    )


def _searched(job: TrainingJob, plan: SearchPlan, cluster: Cluster) -> tuple[Outcome, Best, dict[str, int]]:
    """Run an Experiment by the launch protocol: its best trial, and how many trials ended in each way."""
    from ddpipe.kube.cluster import spec_schema
    from ddpipe.launching.launcher import launch

    def kind(inner: Backend) -> Backend:
        patient = cluster.patient(job.limits.outage)
        return experiment(plan, inner, spec_schema(patient, inner.resource, needed=inner.needs_schema))

    found: list[tuple[Best, dict[str, int]]] = []  # taken before the launcher removes the Experiment

    def check(ended: Object) -> OutputMissing | None:
        if best := best_of(ended):
            found.append((best, counts_of(ended)))
            return None
        return OutputMissing(
            what="the search ended without a score",
            which=f"{RESOURCE.kind} {job.namespace}/{job.name}",
            seen=f"no trial has a value of {plan.metric}",
            do=f"Check that the lines of the training contain {plan.metric}=VALUE, and that the namespace "
            "has the label katib.kubeflow.org/metrics-collector-injection=enabled.",
        )

    outcome = launch(job, cluster, exists=lambda _uri: True, is_process=True, wrap=kind, check=check)
    return outcome, *found[-1]


def _options(options: JobOptions, plan: SearchPlan) -> dict[str, Any]:
    """The job's options; its pods are those of all trials at the same time."""
    if options.min_nodes:
        raise ParameterError(
            what="the search cannot start",
            which="`min_nodes`",
            seen="the number of pods of a trial is fixed",
            do="Leave out `min_nodes`.",
        )
    # A trial that fails is counted by the Experiment, which continues.
    return {**options.to_dict(), "nodes": options.nodes * plan.parallel, "restart": Restart.ON_FAILURE}


_SHOWN = (
    StudyOptions,
    VersionOptions,
    SearchOptions,
    PrepareSpec,
    StartingRecipe,
    Recipe,
    EvaluateSpec,
    StoreOptions,
)
_CHECKED = (*_SHOWN, TrainOptions)


@on_option
@click.command("tune", cls=SectionedCommand)
@click.argument("path", required=False)
@options(*_SHOWN, brief=True)
@json_option
def study_command(path: str | None, **values: Any) -> None:
    """Search hyperparameters on this machine: prepare once, train trials, finish the run of the best one.

    PATH is the raw data: a folder, a file or s3://bucket/prefix, the same as --source-path.
    """
    values = with_path(path, values)
    given = validation.checked("the search cannot start", _CHECKED, values, given_names(values))
    recipe, search = chosen_recipe(given), given.of(SearchOptions)
    checked(parsed(search.search), recipe, given.given)  # before anything is prepared
    data = data_of(given)
    title = data.name if isinstance(data, PrepareSpec) else "study"
    study = Study.named(given["study"] or timed_name(title))
    training, evaluation = given.of(TrainOptions), given.of(EvaluateSpec)
    with resumed_by("study", Run(str(study.folder)), given["study"], same_command()):
        found, finished = tune_here(study, data, recipe, search, training, evaluation)
    print_result({**found.to_dict(), "run": finished.to_dict()}, f"{found.text()}\n{finished.text()}")


def tune_here(
    study: Study,
    data: PrepareSpec | str,
    recipe: Recipe,
    search: SearchOptions,
    training: TrainOptions,
    evaluation: EvaluateSpec,
) -> tuple[Findings, Summary]:
    """Search in this process and finish the winner's run; trials are child processes, which end with it."""
    from ddpipe.prepare.prepare import prepare
    from ddpipe.tune.searching import tune

    with working_in(str(study.folder), what="the study"):
        dataset = data if isinstance(data, str) else prepare(data).manifest_uri
        found = tune(study, dataset, recipe, search, training.processes_per_pod)
        won = study.run(found.best.number)
        finished = RunPlan(won, dataset, found.recipe, training, evaluation).carry_out()
    return found, finished
