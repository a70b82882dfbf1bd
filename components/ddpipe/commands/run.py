"""`ddpipe run`: the whole pipeline on this machine, one step after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from ddpipe import validation, workflow
from ddpipe.commands import json_option, print_result
from ddpipe.commands.options import (
    SectionedCommand,
    chosen_recipe,
    given_names,
    list_presets_option,
    options,
)
from ddpipe.data.versions import address
from ddpipe.errors import Interrupted, ParameterError, ReplicaFailed, StoreError
from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
from ddpipe.export import ExportSpec
from ddpipe.jobs.job import Owner
from ddpipe.parameters import Between, Parameters, parameter, refuse
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.processes.machine import on_stop
from ddpipe.runs import Run, RunOptions, removed_if_rejected
from ddpipe.steps import ReuseOptions, StoreOptions, TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease
from ddpipe.train.presets import PresetOptions
from ddpipe.train.recipe import Recipe

if TYPE_CHECKING:
    from ddpipe.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunOptions(Parameters):
    """The run, on this machine."""

    heading: ClassVar[str] = "Run"

    run: str = parameter(
        "",
        "Name of the run; an unfinished run is resumed (default: name of the dataset, and the time).",
        common=True,
    )
    processes: int = parameter(1, "Training processes on this machine.", Between(1, 256), common=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOptions(Parameters):
    """Data that is a dataset version already."""

    heading: ClassVar[str] = "Data"

    dataset: str = parameter(
        "",
        "Dataset version to use instead of a source: the URI of its manifest, or its ID in the store or a "
        "unique prefix of it.",
        common=True,
    )


_CHECKED = (
    RunOptions,
    ReuseOptions,
    PrepareSpec,
    PresetOptions,
    Recipe,
    TrainOptions,
    EvaluateSpec,
    GateSpec,
    ExportSpec,
    StoreOptions,
)
_SHOWN = (
    LocalRunOptions,
    RunOptions,
    ReuseOptions,
    VersionOptions,
    PrepareSpec,
    PresetOptions,
    Recipe,
    EvaluateSpec,
    GateSpec,
    ExportSpec,
    StoreOptions,
)


@click.command("run", cls=SectionedCommand)
@click.argument("path", required=False)
@options(*_SHOWN, without=("run_id",), brief=True)
@list_presets_option
@json_option
def run_command(path: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report.

    PATH is the raw data: a folder, a file or s3://bucket/prefix, the same as --source-path.
    """
    given = with_path(path, given)
    refuse("the run cannot start", validation.problems(_CHECKED, given, given_names(given)))
    data, recipe = data_of(given), chosen_recipe(given)
    title = data.name if isinstance(data, PrepareSpec) else "run"
    run = Run.named(given["runs"], given["run"] or f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    plan = RunPlan(
        run,
        data,
        recipe,
        TrainOptions.from_run_values(given),
        EvaluateSpec.from_run_values(given),
        GateSpec.from_run_values(given),
        ExportSpec.from_run_values(given),
        reuse=ReuseOptions.from_run_values(given).reuse,
    )
    with resumed_by("run", run, given["run"]):
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


@contextmanager
def resumed_by(parameter: str, begun: Run, given: str) -> Iterator[None]:
    """Add to an error after which the same command resumes how it finds the run, if its name has the time."""
    try:
        yield
    except (Interrupted, ReplicaFailed, StoreError) as error:
        if not given and _is_begun(begun):
            named = f"`{parameter}` {begun.name}"
            more = f"Add {named} to the command; otherwise a new {parameter} begins."
            error.do = f"{error.do.rstrip('.')}. {more}"
        raise


def _is_begun(run: Run) -> bool:
    try:
        return run.has_begun
    except StoreError:  # it may be what has failed
        return False


def data_of(given: Mapping[str, Any]) -> PrepareSpec | str:
    """What to prepare, or the URI of a dataset version."""
    spec = PrepareSpec.from_run_values(given)
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
    """A whole run on this machine.

    Attributes:
        data: What to prepare, or the URI of a dataset version.
    """

    run: Run
    data: PrepareSpec | str
    recipe: Recipe
    options: TrainOptions
    evaluation: EvaluateSpec
    gate: GateSpec = field(default_factory=GateSpec)
    export: ExportSpec = field(default_factory=ExportSpec)
    reuse: bool = False

    def carry_out(self) -> Summary:
        """Run all steps in this process; training ranks are child processes, which end with it."""
        from ddpipe.summary import summary

        written = [self.run.uri, *([self.data.store] if isinstance(self.data, PrepareSpec) else [])]
        with removed_if_rejected(*written):
            for folder in written:
                open_store(folder).check_writable()
            if self.evaluation.slice_columns:
                from ddpipe.evaluate.slices import rows_of

                rows_of(self.evaluation)  # what is wrong with the table is found before the training
            with on_stop(self._stop), lease(open_store(self.run.uri)):
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
        workflow.export(run, dataset, network, self.export)

    def _stop(self) -> NoReturn:
        raise Interrupted(
            what="the run was interrupted",
            which=self.run.uri,
            seen="a stop signal arrived between two checkpoints",
            do="Run the same command again to resume from the last one.",
        )
