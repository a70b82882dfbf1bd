"""A step as a command: its options from its declaration, its results to whoever called."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddpipe import form
from ddpipe.commands import json_option, kfp_v2
from ddpipe.commands.options import SectionedCommand, as_option, options, parsed
from ddpipe.commands.results import EXECUTOR, WRITE, Outcome, check_writable, files_of, tell
from ddpipe.commands.task_config import with_task_config
from ddpipe.data.versions import address
from ddpipe.parameters import Parameter, refuse
from ddpipe.steps import LATER, DatasetOptions, Step

Values = dict[str, Any]
Checks = tuple[tuple[str, str], ...]


def step_command(
    step: Step,
    **settings: Any,  # noqa: ANN401 - click's own
) -> Callable[[Callable[..., Outcome]], click.Command]:
    """The command of a step, from a function of its parameters' values by name.

    Everything wrong with the parameters, and with those of later steps that --check names, is refused at once
    before the function is called. What --options holds is as good as given one by one. `settings` are click's
    own.
    """

    def decorate(body: Callable[..., Outcome]) -> click.Command:
        @click.command(step.command[-1], cls=SectionedCommand, help=step.help, **settings)
        @options(*step.groups)
        @_more_option
        @_check_option
        @_write_option(step)
        @_executor_option
        @json_option
        @functools.wraps(body)
        def command(options: Values, check: Checks, **given: Any) -> None:  # noqa: ANN401 - by their names
            values = with_task_config(_task_config(), {**given, **options})
            problems = [problem for group in step.groups for problem in group.problems_in(values)]
            found = [*_misplaced(step, options), *problems, *_later_problems(dict(check))]
            refuse(f"{step.name} cannot start", dict.fromkeys(found))
            _use_endpoint(values)
            if DatasetOptions in step.groups:
                values["dataset"] = address(values["dataset"], values.pop("store"))
            tell(body(**values))

        command.__doc__ = step.help
        return command

    return decorate


def _task_config() -> Mapping[str, Any]:
    """What a pipeline sets on the step for its job, if an engine runs it that says so."""
    executor_input = click.get_current_context().meta.get(EXECUTOR)
    return kfp_v2.task_config(executor_input) if executor_input else {}


def _misplaced(step: Step, options: Mapping[str, Any]) -> list[str]:
    """Names in --options that are none of the step's, or that were given by themselves as well."""
    names = [item.name for item in step.parameters]
    source = click.get_current_context().get_parameter_source
    twice = [name for name in options if source(name) is ParameterSource.COMMANDLINE]
    return [
        *(form.unknown(name, names) for name in options if name not in names),
        *(f"{name} is given twice: by itself, and among the options" for name in twice),
    ]


def _later_problems(named: Mapping[str, str]) -> list[str]:
    """What is wrong with the parameters of later steps, each group's together."""
    items = {item.name: item for step in LATER for item in step.parameters}
    objects = {item.name: item for item in form.objects(items.values())}
    known = {**items, **objects}
    values: Values = {}
    problems = [form.unknown(name, known) for name in named if name not in known]
    for name in filter(known.__contains__, named):
        value = parsed(known[name], named[name])
        if name in objects:
            inside, wrong = form.opened(name, value, items)
            values |= inside
            problems += wrong
        else:
            values[name] = value
    groups = dict.fromkeys(group for step in LATER for group in step.groups)
    found = [problem for group in groups if _concerns(group, values) for problem in group.problems_in(values)]
    return [*problems, *found]


def _concerns(group: type[Any], values: Mapping[str, Any]) -> bool:
    return any(name in values for name in group.__dataclass_fields__)


def _use_endpoint(given: Mapping[str, Any]) -> None:
    """What the environment says comes first: a notebook may reach the store by another address than pods."""
    if given.get("s3_endpoint"):
        os.environ.setdefault("S3_ENDPOINT", given["s3_endpoint"])


_more_option = as_option(
    Parameter(
        name="options",
        kind=dict,
        default={},
        help="Further options as one JSON object of names, with underscores, and values; or @ and its file.",
    ),
    "Options",
)

_check_option = click.option(
    "--check",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Parameter of a later step, or an object of several (train_options), to be checked before any work; "
    "repeatable.",
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
    help="KFP 2's executor input: settings of the task, for its job, and where outputs' metadata is written.",
)
