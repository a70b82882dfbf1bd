"""What the commands that talk to a pipeline server share: which server, which package, which parameters."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click

from ddpipe import form
from ddpipe.commands.options import options, parsed, taken
from ddpipe.engine.client import Engine, connect
from ddpipe.engine.endpoint import EndpointOptions, resolve
from ddpipe.engine.package import Package, read_package, read_values
from ddpipe.engine.runs import Request
from ddpipe.engine.versions import publish
from ddpipe.parameters import Parameter, Parameters, parameter, refuse
from ddpipe.pipelines.compile import COMPILED, PIPELINES

Command = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(Parameters):
    """What the server is to run."""

    heading: ClassVar[str] = "Run"

    pipeline: str = parameter("", "Name of the pipeline on the server (default: the package's own).")
    experiment: str = parameter("ddpipe", "Experiment of the runs; it is created if it does not exist.")
    service_account: str = parameter("", "Service account of the steps (default: the server's).")


def with_engine(command: Command) -> Command:
    """Options that say which server; the command is given it, reached."""

    @options(EndpointOptions)
    @functools.wraps(command)
    def connected(**given: Any) -> None:  # noqa: ANN401 - by their names
        own = taken(EndpointOptions, given)
        command(connect(resolve(own, os.environ)), **given)

    return connected


def with_request(command: Command) -> Command:
    """A package and its parameters; the command is given a function that publishes them to an engine."""

    @click.argument("package", default="training")
    @click.option(
        "--set",
        "assigned",
        multiple=True,
        metavar="NAME=VALUE ...",
        help="Parameter of the pipeline; repeatable.",
    )
    @click.option(
        "--parameters", "file", help="YAML file with parameters of the pipeline; --set overrides it."
    )
    @options(PipelineOptions)
    @functools.wraps(command)
    def requested(
        package: str,
        assigned: tuple[str, ...],
        file: str | None,
        **given: Any,  # noqa: ANN401
    ) -> None:
        own = taken(PipelineOptions, given)
        read = named_package(package)
        values = _values(read, read_values(Path(file)) if file else {}, assigned)
        command(publisher=functools.partial(_publish, read, values, own), **given)

    return requested


def named_package(name: str) -> Package:
    """A package of ours by its short name, or any by its path."""
    return read_package(COMPILED / f"{PIPELINES[name].name}.yaml" if name in PIPELINES else Path(name))


def _publish(package: Package, values: Mapping[str, Any], own: PipelineOptions, engine: Engine) -> Request:
    version = publish(engine, package, own.pipeline)
    return Request(version=version, arguments=values, experiment=own.experiment, account=own.service_account)


def _values(package: Package, from_file: Mapping[str, Any], assigned: tuple[str, ...]) -> dict[str, Any]:
    """What the package's form is given; for packages of ours, the command line's names are as good as its.

    Raises:
        ParameterError: Unknown names and invalid values; all of them are listed.
    """
    ours = next((one for one in PIPELINES.values() if one.name == package.name), None)
    shown = {item.name: item for item in package.parameters}
    short = {item.name: item for task in ours.tasks for item in task.open} if ours else {}
    declared = {**short, **shown, **({item.name: item for item in ours.parameters} if ours else {})}
    given = (from_file, _assigned(assigned, declared))
    unknown = [form.unknown(name, declared) for one in given for name in one if name not in declared]
    named = [(declared[name], value) for one in given for name, value in one.items() if name in declared]
    wrong = [item.problem(value) for item, value in named]
    values: dict[str, Any] = {}
    for one in given:
        values = _merged(values, {name: value for name, value in one.items() if name in shown})
        plain = {name: value for name, value in one.items() if name in short and name not in shown}
        values = _merged(values, ours.filled(plain) if ours else {})
    missing = [
        f"{item.name} is missing" for item in shown.values() if item.required and item.name not in values
    ]
    refuse(f"{package.name} cannot run", [*unknown, *filter(None, wrong), *missing])
    return values


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Both; of an object each name counts by itself."""
    both = first.keys() & then.keys()
    objects = {name: {**first[name], **then[name]} for name in both if isinstance(then[name], dict)}
    return {**first, **then, **objects}


def _assigned(texts: tuple[str, ...], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Values of the declared types from NAME=VALUE; a name that nobody declares is refused later."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        values[name] = parsed(declared[name], value) if name in declared else value
    return values
