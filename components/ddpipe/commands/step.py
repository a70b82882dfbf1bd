"""A step as a command: its options come from its declaration, its results go to the caller.

In KFP 2.15 or later, a component can receive the settings of its task instead of having them applied to its
own pod: a JSON object with fragments of a pod's spec, `TaskConfig` in KFP. They become options of the job
that the task launches: resources, node selector and tolerations as such, the rest as a part of its patch.
"""

from __future__ import annotations

import functools
import json
import os
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
from ddpipe.commands.results import EXECUTOR, WRITE, CommandOutcome, check_writable, deliver, files_of
from ddpipe.data.versions import address
from ddpipe.jobs import CONTAINER, LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.jobs.pods import merged, volume_name
from ddpipe.parameters import Parameter, Parameters, declared, refuse
from ddpipe.steps import LATER, TASK_CONFIG, DatasetOptions, Step

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
        @_subject_argument(step)
        @options(*step.groups, brief=True)
        @_more_option
        @_check_option
        @_write_option(step)
        @_executor_option
        @json_option
        @functools.wraps(body)
        def command(options: Values, check: Checks, subject: str | None = None, **given: Any) -> None:
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
    if not executor_input:
        return {}
    # Not an argument of its own, as KFP 2.17.0 fills in arguments before it knows the settings.
    inputs = json.loads(executor_input).get("inputs", {}).get("parameterValues", {})
    found: Mapping[str, Any] = inputs.get(TASK_CONFIG) or {}
    return found


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
    def remember(ctx: click.Context, _option: click.Parameter, value: Any) -> None:
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


def with_task_config(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options with the task's settings, which override them."""
    refuse("the settings of the task cannot be applied to its job", _malformed(settings))
    found = {name: _named(name, value) for name, value in settings.items() if value}
    if not found:
        return dict(values)
    refuse("the settings of the task cannot be applied to its job", _unfit(found, values))
    return {
        **values,
        **_amounts(_limits(found)),
        "node_selector": {**values["node_selector"], **found.get("nodeSelector", {})},
        "tolerations": [*values["tolerations"], *found.get("tolerations", ())],
        "patch": merged(values["patch"], _patch(found)),
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


def _named(field: str, value: Any) -> Any:
    """KFP names a volume after its object, which may not be a valid name for a volume."""
    if field not in {"volumes", "volumeMounts"}:
        return value
    return [{**item, "name": volume_name(str(item.get("name", "")))} for item in value]


def _unfit(found: Settings, values: Mapping[str, Any]) -> Iterator[str]:
    if values["backend"] == LOCAL:
        yield f"backend is {LOCAL}, so there is no job; choose another, or the component without a TaskConfig"
    devices = _devices(_limits(found))
    if len(devices) > 1:
        yield f"resources name {len(devices)} kinds of accelerator: {', '.join(devices)}"
    for name, amount in devices.items():
        if not str(amount).isdecimal():
            yield f"resources: {name} is {amount!r}, not a whole number"


def _limits(found: Settings) -> dict[str, str]:
    """The limits of a pod, or its requests where it has no limit."""
    resources = found.get("resources", {})
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _devices(limits: Mapping[str, str]) -> dict[str, str]:
    return {name: amount for name, amount in limits.items() if name not in _TYPED}


def _amounts(limits: Mapping[str, str]) -> dict[str, Any]:
    typed = {name: amount for name, amount in limits.items() if name in _TYPED}
    devices = [{"gpu_resource": name, "gpus": int(amount)} for name, amount in _devices(limits).items()]
    return {**typed, **(devices[0] if devices else {})}


def _patch(found: Settings) -> dict[str, Any]:
    """The patch for settings without an option."""
    smaller = _smaller_requests(found)
    container = {
        **({"resources": {"requests": smaller}} if smaller else {}),
        **{name: found[name] for name in ("env", "volumeMounts") if name in found},
    }
    return {
        "spec": {
            **{name: found[name] for name in ("affinity", "volumes") if name in found},
            **({"containers": [{"name": CONTAINER, **container}]} if container else {}),
        }
    }


def _smaller_requests(found: Settings) -> dict[str, str]:
    """Requests below the limits; by default, a job's requests equal its limits."""
    requests, limits = found.get("resources", {}).get("requests") or {}, _limits(found)
    return {name: amount for name, amount in requests.items() if amount != limits[name]}
