"""The functions of `import ddpipe`: a run on this machine and its steps, with the parameters of the commands.

    result = ddpipe.run("photos", minutes=5)
    result.metrics["accuracy"], result.report, result.model.predict("new.jpg")

A function takes what the command of its name takes, as Python values, and raises the errors of errors.py.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, wraps
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ddpipe import form, workflow
from ddpipe.data.manifest import name_in
from ddpipe.data.versions import address
from ddpipe.errors import Interrupted, ParameterError, ReplicaFailed, StoreError, error_for_missing_package
from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.parameters import AUTO, Between, OrAuto, Parameters, declared, parameter, with_declared
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run, RunOptions, removed_if_rejected, working_in
from ddpipe.steps import (
    EVALUATE,
    EXPORT,
    REUSE,
    TRAIN_ANYWHERE,
    VERSION,
    ReuseOptions,
    StoreOptions,
    TrainOptions,
)
from ddpipe.storage import open_store, read_uri
from ddpipe.storage.lease import lease
from ddpipe.train.recipe import Recipe, StartingRecipe
from ddpipe.tune.study import best_recipe
from ddpipe.validation import RunSettings, checked

if TYPE_CHECKING:
    from ddpipe.prepare.prepare import Prepared
    from ddpipe.serve.predictor import Predictor
    from ddpipe.summary import Summary

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunOptions(Parameters):
    """The run, on this machine."""

    heading: ClassVar[str] = "Run"

    run: str = parameter(
        "",
        "Name of the run; an unfinished run is resumed (default: name of the dataset, and the time).",
        common=True,
    )
    processes: int = parameter(
        1,
        f"Training processes on this machine; {AUTO} finds how many are fastest, by the first steps.",
        OrAuto(Between(1, 256)),
        common=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOptions(Parameters):
    """Data that is a dataset version already."""

    heading: ClassVar[str] = "Data"

    dataset: str = parameter("", f"Dataset version to use instead of a source: {VERSION}.", common=True)


CHECKED = (
    RunOptions,
    ReuseOptions,
    PrepareSpec,
    StartingRecipe,
    Recipe,
    TrainOptions,
    EvaluateSpec,
    GateSpec,
    StoreOptions,
)
# The parameters of a run on this machine.
RUN_GROUPS = (LocalRunOptions, VersionOptions, *(one for one in CHECKED if one is not TrainOptions))
_PREPARE = (PrepareSpec, StoreOptions)
_OF_RUN = ("run_id", "run")


class Report(str):
    """The URI of a page, which a notebook shows in place of the URI."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # The page has its own styles: in a frame, they do not reach the notebook.
        page = html.escape(read_uri(self).decode())
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border: 0"></iframe>'


@dataclass(frozen=True)
class Result:
    """A run, and what its last step found.

    Attributes:
        uri: The run's folder.
        metrics: Scores by their names: on the test split, or after training on the validation split.
        text: What the command prints.
    """

    uri: str
    metrics: Mapping[str, float]
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        """The result in a few lines."""
        return self.text or f"{self.uri}: {dict(self.metrics)}"

    @property
    def run(self) -> str:
        """The name of the run."""
        return Run(self.uri).name

    @property
    def report(self) -> Report:
        """The report on the run."""
        return Report(Run(self.uri).report)

    @cached_property
    def model(self) -> Predictor:
        """The exported model."""
        from ddpipe.serve.predictor import load_model

        return load_model(Run(self.uri).origin("export").model)


def _with_install_advice(function: F) -> F:
    """The function, with advice in place of the name of a package that is not installed."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except ModuleNotFoundError as error:
            raise error_for_missing_package(f"ddpipe.{function.__name__}", error) from None

    return cast("F", called)


@_with_install_advice
@with_declared(*RUN_GROUPS, without=("run_id", "source_path"))
def run(path: str | PathLike[str] = "", **options: Any) -> Result:
    """Turn raw data into a model on this machine: prepare, train, evaluate, export, report.

    Args:
        path: The raw data: a folder, a file or s3://bucket/prefix.
        options: Of the run.
    """
    given = _settings("run", CHECKED, _with_source(path, options), RUN_GROUPS)
    begun = planned(given)
    with resumed_by("run", begun.run, given["run"]):
        found = begun.carry_out()
    scores = {name: score["value"] for name, score in found.metrics["test"].items()}
    return Result(begun.run.uri, scores, found.text())


@_with_install_advice
@with_declared(*_PREPARE, without=("source_path",))
def prepare(path: str | PathLike[str] = "", **options: Any) -> Prepared:
    """Turn raw data into a dataset version; `manifest_uri` of the result names it.

    Args:
        path: The raw data: a folder, a file or s3://bucket/prefix.
        options: Of the dataset version.
    """
    from ddpipe.prepare.prepare import prepare as step

    return step(_settings("prepare", _PREPARE, _with_source(path, options)).of(PrepareSpec))


@_with_install_advice
@with_declared(*TRAIN_ANYWHERE.groups, without=("run_id", "dataset", "pipeline", "task_id", "step"))
def train(dataset: str, **options: Any) -> Result:
    """Train a model on a dataset version, on this machine or in the pods of a job.

    Args:
        dataset: Its name (the newest version), an ID or a unique prefix of it, or the URI of a manifest.
        options: Of the training.
    """
    begun, record = train_alone(_settings("train", TRAIN_ANYWHERE.groups, {**options, "dataset": dataset}))
    return Result(begun.uri, record["final"])


@_with_install_advice
@with_declared(*EVALUATE.groups, without=_OF_RUN)
def evaluate(run: str | Result, **options: Any) -> Result:
    """Evaluate the model of a trained run on the test split, and write its report.

    Args:
        run: Name of the run, or what another function returned.
        options: Of the evaluation.
    """
    begun, dataset, given = _begun("evaluate", EVALUATE.groups, run, options)
    found = workflow.evaluate(begun, dataset, given.of(EvaluateSpec), given["network"])
    return Result(begun.uri, found.headline())


@_with_install_advice
@with_declared(*EXPORT.groups, without=_OF_RUN)
def export(run: str | Result, **options: Any) -> Result:
    """Export the model of an evaluated run: `model` of the result predicts.

    Args:
        run: Name of the run, or what another function returned.
        options: Of the dataset and the network.
    """
    begun, dataset, given = _begun("export", EXPORT.groups, run, options)
    package = workflow.export(begun, dataset, given["network"])
    return Result(begun.uri, {name: score.value for name, score in package.metrics.scores.items()})


def _with_source(path: str | PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, **({"source_path": fspath(path)} if path else {})}


def _settings(
    what: str,
    groups: tuple[type[Parameters], ...],
    given: Mapping[str, Any],
    known: tuple[type[Parameters], ...] = (),
) -> RunSettings:
    """All values of these groups: those that are given, out of the known ones, and the defaults."""
    items = {item.name: item for group in reversed(known or groups) for item in declared(group)}
    unknown = [form.unknown(name, items) for name in given if name not in items]
    values = {**{name: item.default for name, item in items.items()}, **given}
    return checked(f"{what} cannot start", groups, values, given, unknown)


def _begun(
    what: str, groups: tuple[type[Parameters], ...], run: str | Result, options: Mapping[str, Any]
) -> tuple[Run, str, RunSettings]:
    """The run of a step that follows training, its dataset, and the values of the step."""
    folder, _, name = run.uri.rpartition("/") if isinstance(run, Result) else ("", "", run)
    given = _settings(what, groups, {**options, **({"runs": folder} if folder else {}), "run": name})
    return *trained(given), given


def trained(given: RunSettings) -> tuple[Run, str]:
    """The run of a step that follows training, and its dataset version."""
    run = given.of(RunOptions).required
    return run, workflow.dataset_of(run, given["dataset"], given["store"])


def chosen_recipe(settings: RunSettings) -> Recipe:
    """The recipe to start from, with the hyperparameters that the user set."""
    start = settings.of(StartingRecipe).recipe
    own = {item.name: settings[item.name] for item in declared(Recipe) if item.name in settings.given}
    return Recipe.from_dict({**(best_recipe(start, own) if start else {}), **own})


def timed_name(title: str) -> str:
    """The name of a run for which the user gave none."""
    return f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def planned(given: RunSettings) -> RunPlan:
    """The run that these settings describe."""
    data = data_of(given)
    title = data.name if isinstance(data, PrepareSpec) else "run"
    return RunPlan(
        Run.named(given["runs"], given["run"] or timed_name(title)),
        data,
        chosen_recipe(given),
        given.of(TrainOptions),
        given.of(EvaluateSpec),
        given.of(GateSpec),
        reuse=given["if_unchanged"] == REUSE,
    )


def train_alone(given: RunSettings, command: str = "") -> tuple[Run, dict[str, Any]]:
    """The run, and the record of its training by one process; `command` resumes it if the time names it."""
    dataset = address(given["dataset"], given["store"])
    named = given.of(RunOptions).named
    run = named or Run.named(given["runs"], timed_name(name_in(dataset)))
    recipe, options, reuse = chosen_recipe(given), given.of(TrainOptions), given["if_unchanged"] == REUSE
    # On a cluster, the name of the job already makes it unique.
    alone = lease(open_store(run.uri)) if options.backend == LOCAL else nullcontext()
    resumed = nullcontext() if named else resumed_by("run", run, "", command)
    with resumed, removed_if_rejected(run.uri), alone:
        return run, workflow.train(run, dataset, recipe, options, given.of(Owner), reuse=reuse)


@contextmanager
def resumed_by(parameter: str, begun: Run, given: str, command: str = "") -> Iterator[None]:
    """Say in an error how the run is resumed: the same command, with the name if that has the time."""
    try:
        yield
    except (Interrupted, ReplicaFailed, StoreError) as error:
        has_begun = False
        with suppress(StoreError):  # it may be what has failed
            has_begun = begun.has_begun
        if has_begun:
            named = "" if given else f" --{parameter} {begun.name}"
            more = f"To resume: {command}{named}" if command else f"To resume: {parameter}={begun.name!r}"
            known = error.do if Interrupted.AGAIN in error.do else f"{error.do} {Interrupted.AGAIN}"
            error.do = known.replace(Interrupted.AGAIN, more)
        raise


def data_of(given: RunSettings) -> PrepareSpec | str:
    """What to prepare, or the URI of a dataset version."""
    spec = given.of(PrepareSpec)
    if not given["dataset"]:
        return spec.with_detected_source()
    if spec != replace(PrepareSpec(), store=spec.store):
        raise ParameterError(
            what="the run cannot start",
            which=f"dataset {given['dataset']}",
            seen="options for preparing a dataset are given, too",
            do="Leave out `dataset`, or the options for preparing.",
        )
    return address(given["dataset"], spec.store)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A whole run on this machine; `data` is what to prepare, or the URI of a dataset version."""

    run: Run
    data: PrepareSpec | str
    recipe: Recipe
    options: TrainOptions
    evaluation: EvaluateSpec
    gate: GateSpec = field(default_factory=GateSpec)
    reuse: bool = False

    def carry_out(self) -> Summary:
        """Run all steps in this process; training ranks are child processes, which end with it."""
        from ddpipe.summary import summary

        others = [self.data.store] if isinstance(self.data, PrepareSpec) else []
        with working_in(self.run.uri, *others, what="the run"):
            self._steps()
        return summary(self.run)

    def _steps(self) -> None:
        run, network = self.run, self.recipe.model
        if isinstance(self.data, str):
            workflow.use(run, dataset := self.data)
        else:
            dataset = workflow.prepare(run, self.data).manifest_uri
        workflow.train(run, dataset, self.recipe, self.options, Owner(), reuse=self.reuse)
        workflow.evaluate(run, dataset, self.evaluation, network)
        if self.gate.gate_model and not workflow.gate(run, dataset, self.gate).promoted:
            return
        workflow.export(run, dataset, network)
