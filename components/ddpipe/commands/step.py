"""A step as a command: its options come from its declaration, its results go to the caller.

In KFP 2.15 or later, a component can receive the settings of its task instead of having them applied to its
own pod: a JSON object with fragments of a pod's spec, `TaskConfig` in KFP. They become options of the job
that the task launches: resources, node selector and tolerations as such, the rest as a part of its patch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddpipe import form, validation
from ddpipe.commands import SPELLING, json_option
from ddpipe.commands.options import (
    ENGINES,
    SectionedCommand,
    declared_option,
    engine_option,
    given_names,
    options,
    parsed,
)
from ddpipe.commands.results import EXECUTOR, V1_METRICS, V1_UI, WRITE, CommandOutcome, deliver
from ddpipe.data.versions import address
from ddpipe.jobs import CONTAINER, LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.jobs.pods import merged, volume_name
from ddpipe.parameters import Parameter, Parameters, declared, refuse
from ddpipe.steps import LATER, TASK_CONFIG, DatasetOptions, Step, use_endpoint
from ddpipe.storage import split_uri

Values = dict[str, Any]
Checks = tuple[tuple[str, str], ...]

_OBJECT, _LIST = "an object", "a list of objects"
_FIELDS = {
    "resources": _OBJECT,
    "env": _LIST,
    "affinity": _OBJECT,
    "tolerations": _LIST,
    "nodeSelector": _OBJECT,
    "volumes": _LIST,
    "volumeMounts": _LIST,
}
_TYPED = {"cpu", "memory"}
"""Resources that are options of their own."""

Settings = Mapping[str, Any]

_LATER = {item.name: item for step in LATER for item in step.parameters}
"""The parameters that --check may name."""


def step_command(
    step: Step,
    **settings: Any,
) -> Callable[[Callable[..., CommandOutcome | None]], click.Command]:
    """The command of a step, from a function of its parameters' values by name.

    All problems with the step's parameters, and with those of later steps given by --check, are reported
    together before the function is called. A parameter in --options counts as if it had its own option.
    """

    def decorate(body: Callable[..., CommandOutcome | None]) -> click.Command:
        @click.command(step.command[-1], cls=SectionedCommand, help=step.help, **settings)
        @options(*step.groups, brief=True)
        @_more_option
        @_check_option
        @_write_option(step)
        @_executor_option
        @json_option
        @functools.wraps(body)
        def command(options: Values, check: Checks, subject: str | None = None, **given: Any) -> None:
            if check:
                items = [*step.parameters, *_LATER.values()]
                click.get_current_context().meta[SPELLING] = form.as_field(items)
            named = {step.subject: subject} if subject else {}
            values = with_task_config(_task_config(), {**given, **options, **named})
            refuse(f"{step.name} cannot start", _problems(step, values, options, dict(check)))
            use_endpoint(values)
            if DatasetOptions in step.groups:
                values["dataset"] = address(values["dataset"], values.pop("store"))
            if outcome := body(**values):  # None: it has printed the results itself
                deliver(outcome)

        command.__doc__ = step.help
        if step.subject:  # people give it without its option, as in `ddpipe deploy MODEL`
            shown = step.subject.upper().removeprefix("SOURCE_")
            command.params.insert(0, click.Argument(["subject"], required=False, metavar=shown))
        return command

    return decorate


def _task_config() -> Settings:
    """What a pipeline sets on the task for its job, if the engine passes it on."""
    # Not an argument of its own, as KFP 2.17.0 fills in arguments before it knows the settings.
    inputs = json.loads(click.get_current_context().meta.get(EXECUTOR) or "{}").get("inputs", {})
    found: Settings = inputs.get("parameterValues", {}).get(TASK_CONFIG) or {}
    return found


def _problems(step: Step, values: Values, options: Values, check: Mapping[str, str]) -> list[str]:
    """Everything wrong with the step's own parameters and with those of later steps."""
    later, wrong = _later_values(check)
    groups = dict.fromkeys(group for step in LATER for group in step.groups)
    concerned = [group for group in groups if group not in step.groups and _concerns(group, later)]
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


def _later_values(named: Mapping[str, str]) -> tuple[Values, list[str]]:
    """Values of later steps by their parameters' own names, and what is wrong with the names."""
    objects = {item.name: item for item in form.objects(_LATER.values())}
    known = {**_LATER, **objects}
    values: Values = {}
    problems = [form.unknown(name, known) for name in named if name not in known]
    for name in filter(known.__contains__, named):
        value = parsed(known[name], named[name])
        if name in objects:
            inside, wrong = form.opened(name, value, _LATER)
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
    def remember(ctx: click.Context, _option: click.Parameter, value: Any) -> None:
        for _, path in value if key == WRITE else ():  # before any work
            split_uri(str(path))[0].check_writable()
        if value:
            ctx.meta[SPELLING] = str
        ctx.meta[key] = value

    return remember


def _write_option(step: Step) -> Callable[[Callable[..., None]], Callable[..., None]]:
    names = (*(result.name for result in step.results), V1_METRICS, V1_UI)
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


def with_task_config(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options with the task's settings, which override them."""
    what = "the settings of the task cannot be applied to its job"
    refuse(what, _malformed(settings))
    found = {name: _with_valid_names(name, value) for name, value in settings.items() if value}
    if not found:
        return dict(values)
    limits = found.get("resources", {}).get("limits") or {}
    requests = found.get("resources", {}).get("requests") or {}
    amounts = {**requests, **limits}  # a job's requests equal its limits
    devices = {name: amount for name, amount in amounts.items() if name not in _TYPED}
    refuse(what, _unfit(values["backend"], devices))
    typed = {name: amount for name, amount in amounts.items() if name in _TYPED}
    device = [{"gpu_resource": name, "gpus": int(amount)} for name, amount in devices.items()]
    smaller = {name: amount for name, amount in requests.items() if amount != amounts[name]}
    container: dict[str, Any] = {
        **({"resources": {"requests": smaller}} if smaller else {}),
        **{name: found[name] for name in ("env", "volumeMounts") if name in found},
    }
    pod: dict[str, Any] = {
        **{name: found[name] for name in ("affinity", "volumes") if name in found},
        **({"containers": [{"name": CONTAINER, **container}]} if container else {}),
    }
    return {
        **values,
        **typed,
        **(device[0] if device else {}),
        "node_selector": {**values["node_selector"], **found.get("nodeSelector", {})},
        "tolerations": [*values["tolerations"], *found.get("tolerations", ())],
        "patch": merged(values["patch"], {"spec": pod}),
    }


def _malformed(settings: Settings) -> Iterator[str]:
    for name, value in settings.items():
        if name not in _FIELDS:
            yield f"{name!r} is not a field of a TaskConfig; choose from {', '.join(_FIELDS)}"
        elif value and not _is(_FIELDS[name], value):
            yield f"{name} is {value!r}, not {_FIELDS[name]}"


def _is(kind: str, value: object) -> bool:
    if kind == _OBJECT:
        return isinstance(value, dict)
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _with_valid_names(field: str, value: Any) -> Any:
    """KFP names a volume after its object, which may not be a valid name for a volume."""
    if field not in {"volumes", "volumeMounts"}:
        return value
    return [{**item, "name": volume_name(str(item.get("name", "")))} for item in value]


def _unfit(backend: str, devices: Mapping[str, str]) -> Iterator[str]:
    if backend == LOCAL:
        yield f"backend is {LOCAL}, so there is no job; choose another, or the component without a TaskConfig"
    if len(devices) > 1:
        yield f"resources name {len(devices)} kinds of accelerator: {', '.join(devices)}"
    for name, amount in devices.items():
        if not str(amount).isdecimal():
            yield f"resources: {name} is {amount!r}, not a whole number"
