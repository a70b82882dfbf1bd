"""A pipeline in no engine's words: its parameters, and which of them, or which results, each task takes.

KFP 2's package is made of it by kfp_v2.py, KFP 1's by kfp_v1.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ddpipe.components import image_of, option
from ddpipe.parameters import Parameter
from ddpipe.steps import Step

MOUNT = "/data"
"""Where a claim is mounted, in every step and in the job."""

STORE_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - the name of a secret
"""Kubeflow's own, with the keys of its object store."""


class Engine(StrEnum):
    """What the engine fills in."""

    RUN_ID = "run_id"
    TASK_ID = "task_id"


@dataclass(frozen=True, slots=True)
class Given:
    """A parameter of the pipeline."""

    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """A result of an earlier task."""

    task: str
    result: str


Value = Given | Made | Engine | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One step of a pipeline.

    Attributes:
        step: What it does.
        settled: Values of the step's parameters that the pipeline does not take from its user, by name.
        resources: What the names of the pipeline's parameters for its pod begin with.
        cpu: Default CPU request of its pod.
        memory: Default memory limit of its pod.
    """

    step: Step
    settled: Mapping[str, Value] = field(default_factory=dict)
    resources: str
    cpu: str
    memory: str

    @property
    def arguments(self) -> dict[str, Value]:
        """The value of each of the step's parameters, by name."""
        return {item.name: self.settled.get(item.name, Given(item.name)) for item in self.step.parameters}

    @property
    def open(self) -> tuple[Parameter, ...]:
        """The step's parameters that are the pipeline's too."""
        return tuple(item for item in self.step.parameters if item.name not in self.settled)

    @property
    def pod(self) -> tuple[Parameter, Parameter]:
        """The parameters of its pod: CPU and memory."""
        name, pod = self.resources, f"the {self.resources} step's pod"
        return (
            Parameter(name=f"{name}_cpu", kind=str, default=self.cpu, help=f"CPUs requested for {pod}."),
            Parameter(name=f"{name}_memory", kind=str, default=self.memory, help=f"Memory limit of {pod}."),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline.

    Attributes:
        name: Of the pipeline, and of the owner of its jobs.
        title: For people.
        help: What it does, in a sentence or two.
        tasks: One after the other.
        last: What runs however the others end.
        defaults: Of parameters whose declared default does not suit a cluster.
        claim: A volume claim that holds all data; empty for an object store.
    """

    name: str
    title: str
    help: str
    tasks: tuple[Task, ...]
    last: Task
    defaults: Mapping[str, Any]
    claim: str = ""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What its user gives, each name once."""
        found: dict[str, Parameter] = {}
        for task in self.tasks:
            for item in (*task.open, *task.pod):
                found.setdefault(item.name, item)
        defaults = {**self.defaults, **(_on(self.claim) if self.claim else {})}
        return tuple(replace(item, default=defaults.get(name, item.default)) for name, item in found.items())

    @property
    def checked(self) -> tuple[Parameter, ...]:
        """The parameters of later tasks, which the first one checks."""
        first, *later = self.tasks
        own = {item.name for item in first.step.parameters}
        theirs = {item.name for task in later for item in task.open} - own
        return tuple(item for item in self.parameters if item.name in theirs)

    def describe(self) -> dict[str, Any]:
        """All of it as plain values, fit for JSON, with each task's command spelled out.

        A part of a command is text, {"given": name}, {"made": [task, result]} or {"engine": name}.
        """
        return {
            "name": self.name,
            "help": self.help,
            "claim": self.claim,
            "parameters": [
                {"name": item.name, "kind": item.kind.__name__, "default": item.default, "help": item.help}
                for item in self.parameters
            ],
            "tasks": [self._described(task) for task in self.tasks],
            "last": self._described(self.last),
        }

    def _described(self, task: Task) -> dict[str, Any]:
        options = [part for name, value in task.arguments.items() for part in (option(name), _plain(value))]
        checked = self.checked if task is self.tasks[0] else ()
        checks = [part for item in checked for part in ("--check", item.name, {"given": item.name})]
        cpu, memory = task.pod
        return {
            "name": task.step.name.replace("_", "-"),
            "image": image_of(task.step),
            "command": ["ddpipe", *task.step.command, *options, *checks],
            "values": [result.name for result in task.step.results if result.kind.is_value],
            "shows": any(not result.kind.is_value for result in task.step.results),
            "cpu": cpu.name,
            "memory": memory.name,
        }


def _plain(value: Value) -> object:
    match value:
        case Given(name):
            return {"given": name}
        case Made(task, result):
            return {"made": [task, result]}
        case Engine():
            return {"engine": value.value}
    return value


def _on(claim: str) -> dict[str, Any]:
    """Defaults by which all data is on a claim."""
    folders = {name: f"{MOUNT}/ddpipe/{name}" for name in ("runs", "store")}
    return {**folders, "volumes": [f"claim:{claim}:{MOUNT}"], "s3_secret": ""}
