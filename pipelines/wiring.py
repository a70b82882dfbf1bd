"""A pipeline, independent of the engine: its parameters, its tasks, and the inputs of each task.

kfp_v2.py compiles it for KFP 2, kfp_v1.py for KFP 1.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ddpipe import form, validation
from ddpipe.components import image_named
from ddpipe.form import as_option, spelled
from ddpipe.jobs.options import NO_SECRET
from ddpipe.parameters import Parameter, Parameters, declared, parameter, refuse
from ddpipe.steps import Step

HOUR, DAY = 3600, 24 * 3600
"""Seconds."""

MOUNT = "/data"
"""Mount path of a volume claim, in every step and in the job."""

STORE_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - the name of a secret
"""Kubeflow's own secret, with the keys of its object store."""


NOTIFY = "ddpipe-notify", {"url": "DDPIPE_NOTIFY_URL", "success-url": "DDPIPE_NOTIFY_SUCCESS_URL"}
"""A secret with the URLs to which the end of a run is sent; a namespace without it gets no messages."""


class Placeholder(StrEnum):
    """A value that the engine fills in."""

    RUN_ID = "run_id"
    TASK_ID = "task_id"


@dataclass(frozen=True, slots=True)
class Given:
    """A parameter of the pipeline."""

    name: str


YES = "yes"
"""The value of a result on which a task waits."""


@dataclass(frozen=True, slots=True)
class Made:
    """A result of an earlier task."""

    task: str
    result: str


Value = Given | Made | Placeholder | str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions(Parameters):
    """The pods of the steps that process data themselves."""

    step_memory: str = parameter(
        "4Gi", "Memory of the pods of prepare, evaluate, gate and export.", form="cluster_step_memory"
    )


STEP_MEMORY = Given("cluster_step_memory")
SECRET = "storage_secret"  # noqa: S105 - the name of a field
"""The field with the name of the secret whose keys every step gets."""
_SECRET_HELP = f"Secret with the object store's accesskey and secretkey; {NO_SECRET} means no secret."
"""A pod cannot refer to a secret with an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One step of a pipeline."""

    step: Step
    settled: Mapping[str, Value] = field(default_factory=dict)  # parameters that the pipeline sets itself
    cpu: str  # request of its pod, which may use more
    memory: str | Given  # request and limit of its pod
    timeout: int  # seconds after which its pod is stopped
    # Result of an earlier task that must be "yes", or the engine skips this task; None for always
    only_if: Made | None = None
    # Parameter of the pipeline that must not be empty, likewise; no later task waits for this one
    if_given: Given | None = None

    @property
    def open(self) -> tuple[Parameter, ...]:
        """The step's parameters that the user of the pipeline sets."""
        return tuple(item for item in self.step.parameters if item.name not in self.settled)

    @property
    def own(self) -> tuple[Parameter, ...]:
        """The step's parameters that are inputs of their own."""
        return tuple(item for item in self.step.parameters if item.alone or item.name in self.settled)

    @property
    def objects(self) -> tuple[Parameter, ...]:
        """The object fields of the form that hold its other parameters."""
        return form.objects(self.open)

    @property
    def arguments(self) -> dict[str, Value]:
        """The value of each of these, by name."""
        own = {item.name: self.settled.get(item.name, Given(item.form)) for item in self.own}
        return own | {item.name: Given(item.name) for item in self.objects}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline."""

    name: str  # also of the owner of its jobs
    title: str  # that the UI shows
    help: str  # what it does, in one or two sentences
    tasks: tuple[Task, ...]  # one after the other; those with the same `only_if` stand together
    last: Task  # runs at the end even if others fail
    defaults: Mapping[str, Any]  # in place of the declared ones, by the parameters' own names
    claim: str = ""  # a volume claim for all data; empty for an object store

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The fields of its form."""
        defaults = {**self.defaults, **(_on(self.claim) if self.claim else {})}
        return tuple(self._with_takers(item) for item in form.fields(self.open, defaults))

    def _with_takers(self, item: Parameter) -> Parameter:
        """A field whose help names its steps if there are several."""
        tasks = (*self.tasks, self.last)
        names = [task.step.name for task in tasks if item.form == SECRET or item.form in _given(task)]
        text = _SECRET_HELP if item.form == SECRET and not self.claim else item.help
        return replace(item, help=f"{text} For {', '.join(names)}.") if len(names) > 1 else item

    @property
    def open(self) -> tuple[Parameter, ...]:
        """The parameters that its user sets."""
        pods = declared(StepOptions) if any(isinstance(task.memory, Given) for task in self.tasks) else ()
        return (*(item for task in self.tasks for item in task.open), *pods)

    def members(self, field: str) -> tuple[Parameter, ...]:
        """The parameters that an object field holds by name; none for any other field."""
        found = {item.name: item for item in self.open if item.form == field and not item.alone}
        return tuple(found.values())

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the form, from values by the parameters' own names, as on the command line."""
        places = {item.name: item for item in self.open}
        unknown = [form.unknown(name, places) for name in values if name not in places]
        refuse("the form cannot be filled in", unknown)
        fields: dict[str, Any] = {}
        for name, value in values.items():
            item = places[name]
            if item.alone:
                fields[item.form] = item.in_form(value)
            else:
                fields.setdefault(item.form, {})[name] = value
        return fields

    def problems(self, fields: Mapping[str, Any]) -> list[str]:
        """Everything wrong with the fields of a form, of the right types; those left out have defaults."""
        fields = {**{item.name: item.default for item in self.parameters}, **fields}
        objects = {one.name: fields[one.name] for one in form.objects(self.open)}
        own = {item.name: item.read(fields[item.form]) for item in self.open if item.alone}
        values, wrong = form.opened({**own, **objects}, self.open)
        settled = {name: "" for task in self.tasks for name in task.settled}
        groups = dict.fromkeys(group for task in self.tasks for group in task.step.groups)
        found = validation.problems(groups, {**settled, **values}, validation.set_in_form(values))
        return [*wrong, *(spelled(problem, form.as_field(self.open)) for problem in found)]

    @property
    def checked(self) -> tuple[Parameter, ...]:
        """What the first task validates for later ones: parameters, and objects that hold them."""
        first, *later = self.tasks
        found = {
            item.name: item
            for task in later
            for item in (*task.own, *task.objects)
            if item.name not in task.settled and item.name not in first.arguments
        }
        return tuple(found.values())

    def describe(self) -> dict[str, Any]:
        """The pipeline as plain values for JSON, with the full command of each task.

        A part of a command is text, {"given": name}, {"made": [task, result]} or {"engine": name}.
        """
        return {
            "name": self.name,
            "help": self.help,
            "claim": self.claim,
            "secret": SECRET,
            "notify": NOTIFY,
            "parameters": [
                {
                    "name": item.name,
                    "kind": item.form_kind.__name__,
                    "default": item.default,
                    "help": item.help,
                }
                for item in self.parameters
            ],
            "tasks": [self._described(task) for task in self.tasks],
            "last": self._described(self.last),
        }

    def _described(self, task: Task) -> dict[str, Any]:
        values = task.arguments
        own = [part for item in task.own for part in (as_option(item.name), _plain(values[item.name]))]
        objects = [part for item in task.objects for part in ("--options", _plain(values[item.name]))]
        checked = self.checked if task is self.tasks[0] else ()
        checks = [part for item in checked for part in ("--check", item.name, {"given": item.form})]
        return {
            "name": task.step.name.replace("_", "-"),
            "image": image_named(task.step.image),
            "command": ["ddpipe", *task.step.command, *own, *objects, *checks],
            "values": [result.name for result in task.step.results if result.kind.is_value],
            "shows": any(not result.kind.is_value for result in task.step.results),
            "cpu": task.cpu,
            "memory": _plain(task.memory),
            "timeout": task.timeout,
            "only_if": _plain(task.only_if) if task.only_if else None,
            "if_given": task.if_given.name if task.if_given else None,
        }


def _given(task: Task) -> set[str]:
    """The fields that a task uses."""
    return {value.name for value in task.arguments.values() if isinstance(value, Given)}


def _plain(value: Value) -> object:
    match value:
        case Given(name):
            return {"given": name}
        case Made(task, result):
            return {"made": [task, result]}
        case Placeholder():
            return {"engine": value.value}
    return value


def _on(claim: str) -> dict[str, Any]:
    """Defaults that keep all data on a volume claim."""
    folders = {name: f"{MOUNT}/ddpipe/{name}" for name in ("runs", "store")}
    return {**folders, "volumes": [f"claim:{claim}:{MOUNT}"], "s3_secret": ""}
