"""A step as a command: its options from its declaration, its results to whoever called."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ddpipe.commands import json_option
from ddpipe.commands.options import SectionedCommand, options, parsed
from ddpipe.commands.results import EXECUTOR, WRITE, Outcome, check_writable, files_of, tell
from ddpipe.data.versions import address
from ddpipe.parameters import refuse
from ddpipe.steps import LATER, DatasetOptions, Step

Values = dict[str, Any]


def step_command(
    step: Step,
    **settings: Any,  # noqa: ANN401 - click's own
) -> Callable[[Callable[..., Outcome]], click.Command]:
    """The command of a step, from a function of its parameters' values by name.

    Everything wrong with the parameters, and with those of later steps that --check names, is refused at once
    before the function is called. `settings` are click's own.
    """

    def decorate(body: Callable[..., Outcome]) -> click.Command:
        @click.command(step.command[-1], cls=SectionedCommand, help=step.help, **settings)
        @options(*step.groups)
        @_check_option
        @_write_option(step)
        @_executor_option
        @json_option
        @functools.wraps(body)
        def command(check: tuple[tuple[str, str], ...], **given: Any) -> None:  # noqa: ANN401 - by their names
            problems = [problem for group in step.groups for problem in group.problems_in(given)]
            refuse(f"{step.name} cannot start", dict.fromkeys([*problems, *_later_problems(dict(check))]))
            _use_endpoint(given)
            if DatasetOptions in step.groups:
                given["dataset"] = address(given["dataset"], given.pop("store"))
            tell(body(**given))

        command.__doc__ = step.help
        return command

    return decorate


def _later_problems(named: Mapping[str, str]) -> list[str]:
    """What is wrong with the parameters of later steps, each group's together."""
    kinds = {item.name: item for step in LATER for item in step.parameters}
    unknown = [f"{name!r} is no parameter of a later step" for name in named if name not in kinds]
    values = {name: parsed(kinds[name], text) for name, text in named.items() if name in kinds}
    groups = dict.fromkeys(group for step in LATER for group in step.groups)
    found = [problem for group in groups if _concerns(group, values) for problem in group.problems_in(values)]
    return [*unknown, *found]


def _concerns(group: type[Any], values: Mapping[str, Any]) -> bool:
    return any(name in values for name in group.__dataclass_fields__)


def _use_endpoint(given: Mapping[str, Any]) -> None:
    """What the environment says comes first: a notebook may reach the store by another address than pods."""
    if given.get("s3_endpoint"):
        os.environ.setdefault("S3_ENDPOINT", given["s3_endpoint"])


_check_option = click.option(
    "--check",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Parameter of a later step, to be checked before any work; repeatable.",
)


def _note(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, _option: click.Parameter, value: Any) -> None:  # noqa: ANN401 - as click has it
        if key == WRITE:
            check_writable(value)
        ctx.meta[key] = value

    return note


def _write_option(step: Step) -> Callable[[Callable[..., None]], Callable[..., None]]:
    names = files_of(step)
    return click.option(
        "--write",
        type=(click.Choice(names), click.Path(dir_okay=False, path_type=Path)),
        multiple=True,
        expose_value=False,
        callback=_note(WRITE),
        metavar="NAME PATH",
        help=f"Write one result to a file; repeatable. NAME is one of: {', '.join(names)}.",
    )


_executor_option = click.option(
    "--executor-input",
    expose_value=False,
    callback=_note(EXECUTOR),
    metavar="JSON",
    help="KFP 2's executor input; metadata of outputs is written where it says.",
)
