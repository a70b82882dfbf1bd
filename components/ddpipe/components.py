"""The steps as components for Kubeflow Pipelines 2, for the built-in pipelines and for your own.

    from ddpipe.components import clean_up, prepare, train

    @dsl.pipeline
    def mine(photos: str) -> None:
        with dsl.ExitHandler(clean_up()):
            prepared = prepare(source="folder", source_path=photos, store=STORE, runs=RUNS)
            train(dataset=prepared.outputs["dataset"], image=IMAGE, nodes=2, runs=RUNS)

A component fills in the run ID, the task and the name of the pipeline, so that a retry finds its job. All
steps of a pipeline run share one folder; to train several models in one, give those steps different values of
`run`.

Each component is a container that runs `ddpipe STEP --option value`, generated from the step's declaration.
Each input is an argument of its own: the engine would paste it unescaped into a longer one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter as Argument
from inspect import Signature
from typing import Any

from kfp import dsl
from kfp.dsl.container_component_class import ContainerComponent
from kfp.dsl.pipeline_context import Pipeline

from ddpipe import steps
from ddpipe.form import as_option
from ddpipe.jobs.job import Owner
from ddpipe.parameters import Parameter
from ddpipe.steps import Image, Kind, Step, StepResult

# Registry and tag of the images in components and packages: `make compile REGISTRY=… TAG=…`.
REGISTRY, TAG = os.environ.get("DDPIPE_REGISTRY", "ghcr.io/ddpipe"), os.environ.get("DDPIPE_TAG", "0.1.0")
_TYPES: dict[Kind, Any] = {
    Kind.TEXT: dsl.OutputPath(str),
    Kind.NUMBER: dsl.OutputPath(float),
    Kind.DATASET: dsl.Output[dsl.Dataset],
    Kind.MODEL: dsl.Output[dsl.Model],
    Kind.METRICS: dsl.Output[dsl.Metrics],
    Kind.CLASSIFICATION: dsl.Output[dsl.ClassificationMetrics],
    Kind.PAGE: dsl.Output[dsl.HTML],
}


def image_named(image: Image) -> str:
    """The full name of one of ddpipe's images."""
    return f"{REGISTRY}/ddpipe-{image}:{TAG}"


def component(
    step: Step,
    own: Sequence[Parameter] | None = None,
    objects: Sequence[Parameter] = (),
    checked: Sequence[Parameter] = (),
) -> dsl.base_component.BaseComponent:
    """A step as a component."""
    own = step.parameters if own is None else own
    taken = (*own, *objects, *checked)

    def container(*values: Any) -> dsl.ContainerSpec:  # noqa: ANN401 - placeholders
        given = dict(zip(names, values, strict=True))
        options = [part for item in own for part in (as_option(item.name), given[item.name])]
        options += [part for item in objects for part in ("--options", given[item.name])]
        checks = [part for item in checked for part in ("--check", item.name, given[item.name])]
        files: list[Any] = []
        for result in step.results:
            output = given[result.name]
            files += ["--write", result.name, output if result.kind.is_value else output.path]
        return dsl.ContainerSpec(
            image=image_named(step.image),
            command=["ddpipe", *step.command],
            args=[*options, *checks, *files, *(("--executor-input", "{{$}}") if step.results else ())],
        )

    outputs = [
        Argument(one.name, Argument.POSITIONAL_OR_KEYWORD, annotation=_TYPES[one.kind])
        for one in step.results
    ]
    arguments = [*map(argument, taken), *outputs]
    arguments.sort(key=lambda one: one.default is not Argument.empty)
    names = [one.name for one in arguments]
    described(container, step.name, step.help, arguments, (*taken, *step.results))
    return StepComponent(step, container)


class StepComponent(ContainerComponent):  # type: ignore[misc]
    """A component that passes a task all of its inputs."""

    # KFP 2.17.0 does not fill in defaults, and resolves the placeholders of the identity only as inputs.

    def __init__(self, step: Step, function: Callable[..., object]) -> None:
        super().__init__(dsl.container_component(function).component_spec, function)
        self._step = step

    def __call__(self, *args: Any, **given: Any) -> dsl.PipelineTask:  # noqa: ANN401 - channels and values
        """The task with these inputs, by their names."""
        inputs = self.component_spec.inputs or {}
        defaults = {name: item.default for name, item in inputs.items() if item.default is not None}
        identity = {name: value for name, value in _identity().items() if name in inputs}
        if Owner not in self._step.groups:
            identity.pop("pipeline", None)  # clean_up also removes the jobs of nested pipelines
        written = {
            item.name: item.in_form(given[item.name]) for item in self._step.parameters if item.name in given
        }
        return super().__call__(*args, **{**defaults, **identity, **given, **written})


def _identity() -> dict[str, str]:
    """What identifies a task among all others, the same for every attempt."""
    # A job belongs to run ID + task ID + step: the engine's task ID is that of the enclosing group, which
    # differs between loop iterations but not between siblings, whose names differ.
    pipeline = Pipeline.get_default_pipeline()
    return {
        "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        "task_id": dsl.PIPELINE_TASK_ID_PLACEHOLDER,
        "step": dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        **({"pipeline": pipeline.name} if pipeline else {}),
    }


def argument(item: Parameter) -> Argument:
    """A parameter as a parameter of a Python function."""
    default = Argument.empty if item.required else item.default
    return Argument(item.name, Argument.POSITIONAL_OR_KEYWORD, default=default, annotation=item.form_kind)


def described(
    function: Callable[..., object],
    name: str,
    help: str,  # noqa: A002 - as in the declarations
    arguments: Sequence[Argument],
    texts: Sequence[Parameter | StepResult],
) -> None:
    """Set the name, signature and docstring of a function, from which the compiler makes a component."""
    lines = [f"    {item.name}: {item.help}" for item in texts]
    function.__name__ = name
    function.__doc__ = "\n".join([help, "", "Args:", *lines]) if lines else help
    function.__annotations__ = {one.name: one.annotation for one in arguments}
    function.__signature__ = Signature(list(arguments))  # type: ignore[attr-defined]


prepare = component(steps.PREPARE)
train = component(steps.TRAIN)
evaluate = component(steps.EVALUATE)
gate = component(steps.GATE)
export = component(steps.EXPORT)
predict = component(steps.PREDICT)
deploy = component(steps.DEPLOY)
register = component(steps.REGISTER)
tune = component(steps.TUNE)
pytorch_job = component(steps.PYTORCH_JOB)
clean_up = component(steps.CLEAN_UP)
