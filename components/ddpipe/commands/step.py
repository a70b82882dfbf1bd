"""A step as a command: its options come from its declaration, its results go to the caller."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddpipe import form, validation
from ddpipe.commands import SPELLING, json_option, kfp_v2
from ddpipe.commands.options import ENGINES, SectionedCommand, declared_option, engine_option, options, parsed
from ddpipe.commands.presets import given_names
from ddpipe.commands.results import EXECUTOR, WRITE, Outcome, check_writable, deliver, files_of
from ddpipe.commands.task_config import with_task_config
from ddpipe.data.versions import address
from ddpipe.jobs.owner import Owner
from ddpipe.parameters import Parameter, Parameters, declared, refuse
from ddpipe.steps import LATER, DatasetOptions, Step

Values = dict[str, Any]
Checks = tuple[tuple[str, str], ...]


def step_command(
    step: Step,
    **settings: Any,  # noqa: ANN401 - click's own
) -> Callable[[Callable[..., Outcome | None]], click.Command]:
    """The command of a step, from a function of its parameters' values by name.

    All problems with the step's parameters, and with those of later steps given by --check, are reported
    together before the function is called. A parameter in --options counts as if it had its own option.
    """

    def decorate(body: Callable[..., Outcome | None]) -> click.Command:
        @click.command(step.command[-1], cls=SectionedCommand, help=step.help, **settings)
        @_subject_argument(step)
        @options(*step.groups, brief=True)
        @_more_option
        @_check_option
        @_write_option(step)
        @_executor_option
        @json_option
        @functools.wraps(body)
        def command(options: Values, check: Checks, subject: str | None = None, **given: Any) -> None:  # noqa: ANN401 - by their names
            if check:
                click.get_current_context().meta[SPELLING] = form.as_field(
                    [*step.parameters, *_later_parameters()]
                )
            named = {step.subject: subject} if subject else {}
            values = with_task_config(_task_config(), {**given, **options, **named})
            refuse(f"{step.name} cannot start", _problems(step, values, options, dict(check)))
            _use_endpoint(values)
            if DatasetOptions in step.groups:
                values["dataset"] = address(values["dataset"], values.pop("store"))
            if outcome := body(**values):  # None: it has printed the results itself
                deliver(outcome)

        command.__doc__ = step.help
        return command

    return decorate


def _subject_argument(step: Step) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The parameter that people give without its option, as in `ddpipe deploy MODEL`."""
    if not step.subject:
        return lambda command: command
    return click.argument("subject", required=False, metavar=step.subject.upper())


def _task_config() -> Mapping[str, Any]:
    """What a pipeline sets on the task for its job, if the engine passes it on."""
    executor_input = click.get_current_context().meta.get(EXECUTOR)
    return kfp_v2.task_config(executor_input) if executor_input else {}


def _problems(step: Step, values: Values, options: Values, check: Mapping[str, str]) -> list[str]:
    """Everything wrong with the step's own parameters and with those of later steps."""
    later, wrong = _later_values(check)
    concerned = [group for group in _later_groups() if group not in step.groups and _concerns(group, later)]
    given = given_names(values) | validation.set_in_form(later)
    found = validation.problems([*step.groups, *concerned], {**later, **values}, given)
    return [*_misplaced(step, options), *_unidentified(step, values), *wrong, *found]


def _unidentified(step: Step, values: Values) -> list[str]:
    """An engine's step that owns a job must be the same for each attempt, or a retry starts a second job."""
    if not (click.get_current_context().meta.get(EXECUTOR) and Owner in step.groups) or values["run_id"]:
        return []
    fix = "use the component of ddpipe.components, or pass dsl.PIPELINE_JOB_ID_PLACEHOLDER"
    return [f"`run_id` is empty, so that a retry would start a second job: {fix}"]


def _misplaced(step: Step, options: Mapping[str, Any]) -> list[str]:
    """Names in --options that the step does not have, or that have been given as options, too."""
    names = [item.name for item in step.parameters]
    source = click.get_current_context().get_parameter_source
    twice = [name for name in options if source(name) is ParameterSource.COMMANDLINE]
    return [
        *(form.unknown(name, names) for name in options if name not in names),
        *(f"{name} is given twice: as an option of its own, and in --options" for name in twice),
    ]


def _later_groups() -> list[type[Parameters]]:
    return list(dict.fromkeys(group for step in LATER for group in step.groups))


def _later_parameters() -> list[Parameter]:
    return [item for step in LATER for item in step.parameters]


def _later_values(named: Mapping[str, str]) -> tuple[Values, list[str]]:
    """Values of later steps by their parameters' own names, and what is wrong with the names."""
    items = {item.name: item for item in _later_parameters()}
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
    return values, problems


def _concerns(group: type[Parameters], values: Mapping[str, Any]) -> bool:
    """Whether the pipeline has a step with this group.

    Groups share parameters: the storage endpoint is the job's and also the service's. A pipeline without a
    service does not name what the service requires.
    """
    items = declared(group)
    required = {item.name for item in items if item.required}
    return required <= values.keys() and any(item.name in values for item in items)


def _use_endpoint(given: Mapping[str, Any]) -> None:
    """Use the given object store unless the environment names one, which may differ outside the cluster."""
    if given.get("s3_endpoint"):
        os.environ.setdefault("S3_ENDPOINT", given["s3_endpoint"])


_more_option = declared_option(
    Parameter(
        name="options",
        kind=dict,
        default={},
        help="One JSON object of option names (with underscores) and values, or @FILE with such an object.",
    ),
    ENGINES,
    common=False,
)

_check_option = engine_option(
    "--check",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Parameter of a later step, or an object of several (train_options), to validate before any work; "
    "repeatable.",
)


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def remember(ctx: click.Context, _option: click.Parameter, value: Any) -> None:  # noqa: ANN401 - as click has it
        if key == WRITE:
            check_writable(value)
        if value:
            ctx.meta[SPELLING] = str
        ctx.meta[key] = value

    return remember


def _write_option(step: Step) -> Callable[[Callable[..., None]], Callable[..., None]]:
    names = files_of(step)
    return engine_option(
        "--write",
        type=(click.Choice(names), click.Path(dir_okay=False, path_type=Path)),
        multiple=True,
        expose_value=False,
        callback=_remember(WRITE),
        metavar="NAME PATH",
        help=f"Write one result to a file; repeatable. NAME is one of: {', '.join(names)}.",
    )


_executor_option = engine_option(
    "--executor-input",
    expose_value=False,
    callback=_remember(EXECUTOR),
    metavar="JSON",
    help="KFP 2's executor input: the task's settings for its job, and where to write metadata of outputs.",
)
