"""A pipeline for KFP 2: the components, connected."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any

import yaml
from kfp import dsl, kubernetes

from ddpipe.components import argument, component, described
from ddpipe.parameters import OneOf
from ddpipe.pipelines.wiring import (
    MOUNT,
    NOTIFY,
    SECRET,
    YES,
    Given,
    Made,
    Pipeline,
    Placeholder,
    Task,
    Value,
)

_PLACEHOLDERS = {
    Placeholder.RUN_ID: dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    Placeholder.TASK_ID: dsl.PIPELINE_TASK_ID_PLACEHOLDER,
}
_CREDENTIALS = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}


def pipeline_of(pipeline: Pipeline) -> dsl.base_component.BaseComponent:
    """The pipeline for KFP 2's compiler; it can also be nested in another pipeline."""
    arguments = [argument(item) for item in pipeline.parameters]
    arguments.sort(key=lambda one: one.default is not one.empty)

    def graph(*values: Any) -> None:  # noqa: ANN401 - the engine's channels
        given = dict(zip((one.name for one in arguments), values, strict=True))
        last = _task(pipeline, pipeline.last, given, {})
        with dsl.ExitHandler(last, name=pipeline.name.removeprefix("ddpipe-")):
            done: dict[str, dsl.PipelineTask] = {}
            for only_if, tasks in groupby(pipeline.tasks, lambda one: one.only_if):
                with _if_made(only_if, done):
                    for task in tasks:
                        with _if_given(task, given):
                            made = _task(pipeline, task, given, done).after(*done.values())
                        if not task.if_given:
                            done[task.step.name] = made

    described(graph, pipeline.name, pipeline.help, arguments, pipeline.parameters)
    return dsl.pipeline(name=pipeline.name, display_name=pipeline.title)(graph)


def _if_made(only_if: Made | None, done: Mapping[str, dsl.PipelineTask]) -> AbstractContextManager[object]:
    """The engine's own condition on an earlier result, if there is one."""
    if only_if is None:
        return nullcontext()
    earlier = done[only_if.task].outputs[only_if.result]
    made: AbstractContextManager[object] = dsl.If(earlier == YES, name=only_if.result.replace("_", "-"))
    return made


def _if_given(task: Task, given: Mapping[str, Any]) -> AbstractContextManager[object]:
    """The engine's own condition on a parameter, if the task has one."""
    if task.if_given is None:
        return nullcontext()
    made: AbstractContextManager[object] = dsl.If(
        given[task.if_given.name] != "", name=f"{task.step.name}-if"
    )
    return made


def _task(
    pipeline: Pipeline, task: Task, given: Mapping[str, Any], done: Mapping[str, dsl.PipelineTask]
) -> dsl.PipelineTask:
    def filled(value: Value) -> Any:  # noqa: ANN401 - text, or a channel
        match value:
            case Given(name):
                return given[name]
            case Made(earlier, result):
                return done[earlier].outputs[result]
            case Placeholder():
                return _PLACEHOLDERS[value]
        return value

    checked = pipeline.checked if task is pipeline.tasks[0] else ()
    inputs = {name: filled(value) for name, value in task.arguments.items()}
    checks = {item.name: given[item.form] for item in checked}
    made = component(task.step, task.own, task.objects, checked)(**inputs, **checks)
    # The engine caches by input URI and cannot see whether the data behind it changed; each step can.
    made.set_caching_options(enable_caching=False)
    memory = filled(task.memory)
    if isinstance(task.memory, Given):
        # Only registered channels reach the group of a task, and resources are not registered.
        made.register_pipeline_channels([memory])
    made.set_cpu_request(task.cpu).set_memory_request(memory).set_memory_limit(memory)
    kubernetes.set_timeout(made, task.timeout)
    if pipeline.claim:
        kubernetes.mount_pvc(made, pipeline.claim, MOUNT)
    else:
        kubernetes.use_secret_as_env(made, given[SECRET], _CREDENTIALS, optional=True)
    if task is pipeline.last:
        kubernetes.use_secret_as_env(made, *NOTIFY, optional=True)
    return made


def for_new_servers(package: str, pipeline: Pipeline) -> str:
    """A compiled package with what servers know from 2.16 on and earlier ones reject.

    Its form shows choices as drop-down menus, in UIs from 2.17 on; the SDK cannot write them. Its steps must
    not be root: the rest that the *restricted* Pod Security level asks of a step such servers set themselves.
    """
    specification, platform = yaml.safe_load_all(package)
    shown = specification["root"]["inputDefinitions"]["parameters"]
    for item in pipeline.parameters:
        if isinstance(item.allowed, OneOf):
            shown[item.name]["literals"] = list(item.allowed.names)
    head = "".join(line for line in package.splitlines(keepends=True) if line.startswith("#"))
    for executor in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        executor["securityContext"] = {"runAsNonRoot": True}
    body: str = yaml.safe_dump_all([specification, platform])
    return head + body
