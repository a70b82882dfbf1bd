"""What the commands that talk to a pipeline server share: which server, which package, which parameters."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import click

from ddpipe.commands.options import options, parsed
from ddpipe.engine.client import Engine, connect
from ddpipe.engine.endpoint import EndpointOptions, resolve
from ddpipe.engine.package import Package, read_package, read_values
from ddpipe.engine.runs import Request
from ddpipe.engine.versions import publish
from ddpipe.parameters import Parameters, parameter
from ddpipe.pipelines.compile import COMPILED, PIPELINES

Command = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(Parameters):
    """What the server is to run."""

    heading: ClassVar[str] = "Run"

    pipeline: str = parameter("", "Name of the pipeline on the server; empty: the package's own.")
    experiment: str = parameter("ddpipe", "Experiment of the runs, made if there is none.")
    service_account: str = parameter("", "Service account of the steps; empty: the server's default.")


def with_engine(command: Command) -> Command:
    """Options that say which server; the command is given it, reached."""

    @options(EndpointOptions)
    @functools.wraps(command)
    def connected(**given: Any) -> None:  # noqa: ANN401 - by their names
        own = {item.name: given.pop(item.name) for item in fields(EndpointOptions)}
        command(connect(resolve(EndpointOptions.from_dict(own), os.environ)), **given)

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
        own = PipelineOptions.from_dict({item.name: given.pop(item.name) for item in fields(PipelineOptions)})
        read = read_package(COMPILED / f"{package}.yaml" if package in PIPELINES else Path(package))
        values = {**(read_values(Path(file)) if file else {}), **_assigned(assigned, read)}
        read.check(values)
        command(publisher=functools.partial(_publish, read, values, own), **given)

    return requested


def _publish(package: Package, values: Mapping[str, Any], own: PipelineOptions, engine: Engine) -> Request:
    version = publish(engine, package, own.pipeline)
    return Request(version=version, arguments=values, experiment=own.experiment, account=own.service_account)


def _assigned(texts: tuple[str, ...], package: Package) -> dict[str, Any]:
    """Values of the package's own types from NAME=VALUE; a name that it does not know is refused later."""
    kinds = {item.name: item for item in package.parameters}
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        values[name] = parsed(kinds[name], value) if name in kinds else value
    return values
