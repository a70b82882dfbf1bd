"""A step as a command: its options come from its declaration, its results go to the caller.

In KFP 2.15 or later, a component can receive the settings of its task instead of having them applied to its
own pod: a JSON object with fragments of a pod's spec, `TaskConfig` in KFP. They become options of the job
that the task launches: resources, node selector and tolerations as such, the rest as a part of its patch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddpipe import form, validation
from ddpipe.commands import ENGINES, SPELLING, SectionedCommand, engine_option, json_option
from ddpipe.commands.options import declared_option, given_names, options, parsed
from ddpipe.commands.results import EXECUTOR, V1_METRICS, V1_UI, WRITE, CommandOutcome, deliver
from ddpipe.jobs import CONTAINER, LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.jobs.pods import merged, volume_name
from ddpipe.parameters import Parameter, Parameters, declared, refuse
from ddpipe.steps import LATER, TASK_CONFIG, Step
from ddpipe.storage import split_uri
from ddpipe.validation import RunSettings

Values = dict[str, Any]

_OBJECTS = ("resources", "affinity", "nodeSelector")
_LISTS = ("env", "tolerations", "volumes", "volumeMounts")
_TYPED = {"cpu", "memory"}  # resources that are options of their own
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
            help="KFP 2's executor input: the task's settings for its job, and where to write metadata of "
            "outputs.",
        )
        @json_option
        @wraps(body)
        def command(
            options: Values, check: tuple[tuple[str, str], ...], subject: str | None = None, **given: Any
        ) -> None:
            if check:
                items = [*step.parameters, *_LATER.values()]
                click.get_current_context().meta[SPELLING] = form.as_field(items)
            named = {step.subject: subject} if subject else {}
            # Not an argument of its own, as KFP 2.17.0 fills in arguments before it knows the settings.
            engine = json.loads(click.get_current_context().meta.get(EXECUTOR) or "{}")
            settings = engine.get("inputs", {}).get("parameterValues", {}).get(TASK_CONFIG) or {}
            own = {name: given.pop(name) for name in given.keys() - known}
            values = with_task_config(settings, {**given, **options, **named})
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
        f"{name} is given twice: as an option of its own, and in --options"
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


def with_task_config(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options with the task's settings, which override them."""
    what = "the settings of the task cannot be applied to its job"
    refuse(what, _malformed(settings))
    found = {name: value for name, value in settings.items() if value}
    if not found:
        return dict(values)
    for name in {"volumes", "volumeMounts"} & found.keys():
        # KFP names a volume after its object, which may not be a valid name for a volume.
        found[name] = [{**item, "name": volume_name(str(item.get("name", "")))} for item in found[name]]
    limits = found.get("resources", {}).get("limits") or {}
    requests = found.get("resources", {}).get("requests") or {}
    amounts = {**requests, **limits}  # a job's requests equal its limits
    devices = {name: amount for name, amount in amounts.items() if name not in _TYPED}
    refuse(what, _unfit(values["backend"], devices))
    typed: Values = {name: amount for name, amount in amounts.items() if name in _TYPED}
    for name, amount in devices.items():  # one at most
        typed |= {"gpu_resource": name, "gpus": int(amount)}
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
        "node_selector": {**values["node_selector"], **found.get("nodeSelector", {})},
        "tolerations": [*values["tolerations"], *found.get("tolerations", ())],
        "patch": merged(values["patch"], {"spec": pod}),
    }


def _malformed(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if name not in {*_OBJECTS, *_LISTS}:
            yield f"{name!r} is not a field of a TaskConfig; choose from {', '.join([*_OBJECTS, *_LISTS])}"
        elif value and not isinstance(value, dict if name in _OBJECTS else list):
            yield f"{name} is {value!r}, not {'an object' if name in _OBJECTS else 'a list'}"
        elif not all(isinstance(item, dict) for item in value or () if name in _LISTS):
            yield f"{name} is {value!r}, not a list of objects"


def _unfit(backend: str, devices: Mapping[str, str]) -> Iterator[str]:
    if backend == LOCAL:
        yield f"backend is {LOCAL}, so there is no job; choose another, or the component without a TaskConfig"
    if len(devices) > 1:
        yield f"resources name {len(devices)} kinds of accelerator: {', '.join(devices)}"
    for name, amount in devices.items():
        if not str(amount).isdecimal():
            yield f"resources: {name} is {amount!r}, not a whole number"
