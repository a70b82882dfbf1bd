"""A step as a command: its options come from its declaration, its results go to the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddpipe import form, validation
from ddpipe.commands import ENGINES, SPELLING, SectionedCommand, engine_option, json_option
from ddpipe.commands.options import declared_option, given_names, options, parsed
from ddpipe.commands.results import EXECUTOR, V1_METRICS, V1_UI, WRITE, CommandOutcome, deliver
from ddpipe.jobs.job import Owner
from ddpipe.parameters import Parameter, Parameters, declared
from ddpipe.steps import LATER, Step
from ddpipe.storage import split_uri
from ddpipe.validation import RunSettings

Values = dict[str, Any]

_OPTIONS = Parameter(
    name="options",
    kind=dict,
    default={},
    help="One JSON object of option names (with underscores) and values, or @FILE with such an object.",
)
# The parameters that --check may name.
_LATER = {item.name: item for step in LATER for item in step.parameters}


def step_command(
    step: Step, **settings: Any
) -> Callable[[Callable[..., CommandOutcome | None]], click.Command]:
    """The command of a step, from a function of its settings and of the command's own arguments."""
    # All problems with the step's parameters, and with those of later steps given by --check, are reported
    # together before the function is called. A parameter in --options counts as if it had its own option.
    names = (*(result.name for result in step.results), V1_METRICS, V1_UI)
    known = {item.name for item in step.parameters}

    def decorate(body: Callable[..., CommandOutcome | None]) -> click.Command:
        @click.command(step.command[-1], cls=SectionedCommand, help=step.help, **settings)
        @options(*step.groups, brief=True)
        @declared_option(_OPTIONS, ENGINES, common=False)
        @engine_option(
            "--check",
            nargs=2,
            multiple=True,
            metavar="NAME VALUE",
            help="Parameter of a later step, or an object of several (train_options), to validate before any "
            "work; repeatable.",
        )
        @engine_option(
            "--write",
            type=(click.Choice(names), click.Path(dir_okay=False, path_type=Path)),
            multiple=True,
            expose_value=False,
            callback=partial(_remember, WRITE),
            metavar="NAME PATH",
            help=f"Write one result to a file; repeatable. NAME is one of: {', '.join(names)}.",
        )
        @engine_option(
            "--executor-input",
            expose_value=False,
            callback=partial(_remember, EXECUTOR),
            metavar="JSON",
            help="KFP 2's executor input: where to write metadata of outputs.",
        )
        @json_option
        @wraps(body)
        def command(
            options: Values, check: tuple[tuple[str, str], ...], subject: str | None = None, **given: Any
        ) -> None:
            if check:
                items = [*step.parameters, *_LATER.values()]
                click.get_current_context().meta[SPELLING] = form.as_field(items)
            options = {**options, **({step.subject: subject} if subject else {})}
            own = {name: given.pop(name) for name in given.keys() - known}
            values = {**given, **options}
            # None: it has printed the results itself
            if outcome := body(_checked(step, values, options, dict(check)), **own):
                deliver(outcome)

        command.__doc__ = step.help
        if step.subject:  # people give it without its option, as in `ddpipe deploy MODEL`
            shown = step.subject.upper().removeprefix("SOURCE_")
            command.params.insert(0, click.Argument(["subject"], required=False, metavar=shown))
        return command

    return decorate


def _checked(step: Step, values: Values, options: Values, check: Mapping[str, str]) -> RunSettings:
    """The step's settings, checked together with those of later steps."""
    context = click.get_current_context()
    names = [item.name for item in step.parameters]
    wrong = [form.unknown(name, names) for name in options if name not in names]
    wrong += [
        f"{name} is given twice: as an option of its own, and in --options or as an argument"
        for name in options
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if context.meta.get(EXECUTOR) and Owner in step.groups and not values["run_id"]:
        fix = "use the component of ddpipe.components, or pass dsl.PIPELINE_JOB_ID_PLACEHOLDER"
        wrong.append(f"`run_id` is empty, so that a retry would start a second job: {fix}")
    known = {**_LATER, **{item.name: item for item in form.objects(_LATER.values())}}
    wrong += [form.unknown(name, known) for name in check if name not in known]
    given_later = {name: parsed(known[name], text) for name, text in check.items() if name in known}
    later, misplaced = form.opened(given_later, _LATER.values())
    concerned = [group for one in LATER for group in one.groups if _concerns(group, later)]
    given = given_names(values) | validation.set_in_form(later)
    groups = dict.fromkeys([*step.groups, *concerned])
    return validation.checked(
        f"{step.name} cannot start", groups, {**later, **values}, given, [*wrong, *misplaced]
    )


def _concerns(group: type[Parameters], values: Values) -> bool:
    """Whether the pipeline has a step with this group."""
    # Groups share parameters: the storage endpoint is the job's and also the service's. A pipeline without a
    # service does not name what the service requires.
    items = declared(group)
    required = {item.name for item in items if item.required}
    return required <= values.keys() and any(item.name in values for item in items)


def _remember(key: str, ctx: click.Context, _option: click.Parameter, value: Any) -> None:
    for _, path in value if key == WRITE else ():  # before any work
        split_uri(str(path))[0].check_writable()
    if value:
        ctx.meta[SPELLING] = str
    ctx.meta[key] = value
