"""The steps as components for Kubeflow Pipelines 2: for our pipelines and for other people's.

    from ddpipe.components import evaluate, export, prepare, pytorch_job, train

    @dsl.pipeline
    def mine(photos: str) -> None:
        run = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER, "runs": "s3://bucket/runs"}
        prepared = prepare(source="folder", source_path=photos, store="s3://bucket/store", **run)
        train(dataset=prepared.outputs["dataset"], nodes=2, **run)

What is set on a task, such as `.set_memory_limit("16Gi")` or a node selector, is for the step's own pod;
`train_with_task_config` and `pytorch_job_with_task_config` hand it on to the pods of their job (KFP 2.15 and
later).

Each is a container that runs `ddpipe STEP --option value`, generated from the step's declaration. An input is
one whole argument: the engine would paste it unescaped into anything longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter as Argument
from inspect import Signature
from typing import Any

from kfp import dsl
from kfp.dsl.container_component_class import ContainerComponent

from ddpipe import steps
from ddpipe.parameters import Parameter
from ddpipe.steps import TASK_CONFIG, Kind, Result, Step

REGISTRY, TAG = os.environ.get("DDPIPE_REGISTRY", "ghcr.io/ddpipe"), os.environ.get("DDPIPE_TAG", "0.1.0")
"""Where the images are that components and packages name: `make compile REGISTRY=… TAG=…`."""

_TYPES: dict[Kind, Any] = {
    Kind.TEXT: dsl.OutputPath(str),
    Kind.NUMBER: dsl.OutputPath(float),
    Kind.DATASET: dsl.Output[dsl.Dataset],
    Kind.MODEL: dsl.Output[dsl.Model],
    Kind.METRICS: dsl.Output[dsl.Metrics],
    Kind.CLASSIFICATION: dsl.Output[dsl.ClassificationMetrics],
    Kind.PAGE: dsl.Output[dsl.HTML],
}
_EXECUTOR_INPUT = "{{$}}"
_TASK_CONFIG = Argument(TASK_CONFIG, Argument.POSITIONAL_OR_KEYWORD, annotation=dsl.TaskConfig)
"""An input that the engine itself fills in."""
# The step reads the object store with the credentials that its job's pods have.
_PASSED_ON = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field is dsl.TaskConfigField.ENV)
    for field in dsl.TaskConfigField
]


def image_of(step: Step) -> str:
    """The image that a step runs in."""
    return f"{REGISTRY}/ddpipe-{step.image}:{TAG}"


def component(
    step: Step,
    own: Sequence[Parameter] | None = None,
    objects: Sequence[Parameter] = (),
    checked: Sequence[Parameter] = (),
    *,
    task_config: bool = False,
) -> dsl.base_component.BaseComponent:
    """A step as a component.

    Args:
        step: The step.
        own: Those of its parameters that are an input each; None: all.
        objects: Fields of a form, further inputs, that hold others of its parameters by name.
        checked: Parameters of later steps, or such fields, that this one checks before it works.
        task_config: Whether to hand what is set on the task on to its job; servers before 2.15 refuse it.
    """
    own = step.parameters if own is None else own
    taken = (*own, *objects, *checked)

    def container(*values: Any) -> dsl.ContainerSpec:  # noqa: ANN401 - placeholders
        given = dict(zip(names, values, strict=True))
        options = [part for item in own for part in (option(item.name), given[item.name])]
        options += [part for item in objects for part in ("--options", given[item.name])]
        checks = [part for item in checked for part in ("--check", item.name, given[item.name])]
        files = [part for result in step.results for part in _written(result, given[result.name])]
        return dsl.ContainerSpec(
            image=image_of(step),
            command=["ddpipe", *step.command],
            args=[
                *options,
                *checks,
                *files,
                *(("--executor-input", _EXECUTOR_INPUT) if step.results else ()),
            ],
        )

    outputs = [
        Argument(one.name, Argument.POSITIONAL_OR_KEYWORD, annotation=_TYPES[one.kind])
        for one in step.results
    ]
    handed = [_TASK_CONFIG] if task_config else []
    arguments = sorted(
        [*map(argument, taken), *outputs, *handed], key=lambda one: one.default is not Argument.empty
    )
    names = [one.name for one in arguments]
    described(container, step.name, step.help, arguments, (*taken, *step.results))
    made = StepComponent(dsl.container_component(container).component_spec, container)
    if task_config:
        made.component_spec.task_config_passthroughs = _PASSED_ON
    return made


class StepComponent(ContainerComponent):  # type: ignore[misc]
    """A component that gives a task all its inputs: KFP 2.17.0 does not fill in those that have a default."""

    def __call__(self, *args: Any, **given: Any) -> dsl.PipelineTask:  # noqa: ANN401 - channels and values
        """The task with these inputs, by their names."""
        inputs = self.component_spec.inputs or {}
        defaults = {name: item.default for name, item in inputs.items() if item.default is not None}
        return super().__call__(*args, **{**defaults, **given})


def option(name: str) -> str:
    """How the command line spells a parameter."""
    return f"--{name.replace('_', '-')}"


def argument(item: Parameter) -> Argument:
    """A parameter as one of a Python function."""
    default = Argument.empty if item.required else item.default
    return Argument(item.name, Argument.POSITIONAL_OR_KEYWORD, default=default, annotation=item.kind)


def described(
    function: Callable[..., object],
    name: str,
    help: str,  # noqa: A002 - as in the declarations
    arguments: Sequence[Argument],
    texts: Sequence[Parameter | Result],
) -> None:
    """Give a function the name, signature and docstring that the compiler reads."""
    lines = [f"    {item.name}: {item.help}" for item in texts]
    function.__name__ = name
    function.__doc__ = "\n".join([help, "", "Args:", *lines]) if lines else help
    function.__annotations__ = {one.name: one.annotation for one in arguments}
    function.__signature__ = Signature(list(arguments))  # type: ignore[attr-defined]


def _written(result: Result, output: Any) -> Iterator[Any]:  # noqa: ANN401 - a placeholder
    yield from ("--write", result.name, output if result.kind.is_value else output.path)


prepare = component(steps.PREPARE)
train = component(steps.TRAIN)
evaluate = component(steps.EVALUATE)
export = component(steps.EXPORT)
pytorch_job = component(steps.PYTORCH_JOB)
train_with_task_config = component(steps.TRAIN, task_config=True)
pytorch_job_with_task_config = component(steps.PYTORCH_JOB, task_config=True)
