"""The steps as components of your own pipelines."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from google.protobuf import json_format
from kfp import components as kfp_components
from kfp import dsl

from ddpipe import components
from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError
from ddpipe.pipelines.catalogue import TAGS
from ddpipe.pipelines.compile import COMPILED, compile_components, compile_v2
from ddpipe.steps import Step

IDENTITY = {
    "run_id": "{{$.pipeline_job_uuid}}",
    "task_id": "{{$.pipeline_task_uuid}}",
    "step": "{{$.pipeline_task_name}}",
}
"""What the engine replaces when it starts a task."""


def inputs_of(task: Any) -> dict[str, Any]:
    """The constant inputs of a task."""
    given = task.inputs.parameters
    return {name: json_format.MessageToDict(given[name].runtime_value.constant) for name in given}


@pytest.mark.parametrize("step", TAGS, ids=lambda step: step.name)
def test_a_component_file_is_loaded_and_used(step: Step) -> None:
    file = COMPILED / "components" / step.name / "component.yaml"
    loaded = kfp_components.load_component_from_file(str(file))
    (described,) = yaml.safe_load(file.read_text())["components"].values()
    inputs = described["inputDefinitions"]["parameters"]
    assert {name: one["description"].split() for name, one in inputs.items()} == {
        item.name: item.help.split() for item in step.parameters
    }
    required = {item.name: "given" for item in step.parameters if item.required}

    @dsl.component(base_image="python:3.12")
    def own(text: str) -> str:
        return text

    @dsl.pipeline
    def mine(text: str) -> None:
        before = own(text=text)
        identity = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER} if "run_id" in inputs else {}
        task = loaded(**required, **identity)
        task.after(before)

    assert step.name.replace("_", "-") in mine.pipeline_spec.root.dag.tasks


@pytest.mark.parametrize("step", TAGS, ids=lambda step: step.name)
def test_a_task_has_all_inputs(step: Step) -> None:
    """Some servers do not look up defaults; the identity is filled in by the engine."""
    required = {item.name: "given" for item in step.parameters if item.required}

    @dsl.pipeline
    def mine() -> None:
        getattr(components, step.name)(**required)

    (task,) = mine.pipeline_spec.root.dag.tasks.values()
    filled = {**IDENTITY, "pipeline": "mine" if step.name != "clean_up" else ""}
    assert inputs_of(task) == {
        item.name: "given" if item.required else filled.get(item.name, item.default)
        for item in step.parameters
    }


def test_two_tasks_and_each_iteration_have_jobs_of_their_own() -> None:
    """Siblings differ by the name of their task, iterations by that of their group."""

    @dsl.pipeline
    def mine() -> None:
        with dsl.ExitHandler(components.clean_up()):
            components.pytorch_job(image="mine:1")
            components.pytorch_job(image="mine:1")
            with dsl.ParallelFor([1, 2]) as _:
                components.pytorch_job(image="mine:1")

    groups = mine.pipeline_spec.components.values()
    tasks = [
        task
        for group in groups
        for task in group.dag.tasks.values()
        if "pytorch-job" in task.component_ref.name
    ]
    assert len(tasks) == 3
    for task in tasks:
        assert inputs_of(task).items() >= {**IDENTITY, "pipeline": "mine"}.items()


def test_an_identity_that_is_given_stays() -> None:
    @dsl.pipeline
    def mine() -> None:
        components.pytorch_job(image="mine:1", step="tune", task_id="7", pipeline="other", run_id="fixed")

    (task,) = mine.pipeline_spec.root.dag.tasks.values()
    own = {"step": "tune", "task_id": "7", "pipeline": "other", "run_id": "fixed"}
    assert inputs_of(task).items() >= own.items()


def test_numbers_that_may_be_auto_are_given_as_they_are() -> None:
    @dsl.pipeline
    def mine(rate: str = "auto") -> None:
        components.train(dataset="a", image="mine:1", epochs=3, learning_rate=rate)

    (task,) = mine.pipeline_spec.root.dag.tasks.values()
    assert task.inputs.parameters["epochs"].runtime_value.constant.string_value == "3"
    assert task.inputs.parameters["batch_size"].runtime_value.constant.string_value == "auto"
    assert task.inputs.parameters["learning_rate"].component_input_parameter == "rate"


def test_a_job_without_identity_is_rejected_by_the_step() -> None:
    """As of a component file, for which Python does not fill in placeholders."""
    given = json.dumps({"inputs": {"parameterValues": {}}, "outputs": {}})
    ended = CliRunner().invoke(cli, ["launch", "--image", "mine:1", "--executor-input", given])
    assert ended.exit_code == ParameterError.exit_code
    assert "run_id is empty, so that a retry would start a second job" in ended.stderr


@pytest.mark.parametrize("step", TAGS, ids=lambda step: step.name)
def test_component_metadata_passes_the_official_catalogue(step: Step) -> None:
    facts = yaml.safe_load((COMPILED / "components" / step.name / "metadata.yaml").read_text())
    assert list(facts) == ["name", "stability", "dependencies", "lastVerified", "tags"]
    assert facts["name"] == step.name
    assert facts["stability"] in {"experimental", "alpha", "beta", "stable"}
    assert facts["dependencies"]["kubeflow"][0]["name"] == "Pipelines"
    for one in facts["dependencies"]["kubeflow"]:
        assert re.fullmatch(r"(>=|<=|==)\d+\.\d+\.\d+", one["version"])
    assert facts["lastVerified"].tzinfo


def test_packages_of_kfp_2_are_those_of_the_declared_parameters(tmp_path: Path) -> None:
    """`make compile` writes them, and those of KFP 1.x, which need another version of kfp."""
    compile_v2(tmp_path)
    compile_components(tmp_path / "components")
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.yaml")}
    assert len(written) > 20
    for name, text in written.items():
        assert (COMPILED / name).read_text() == text, f"{name} is not current: run `make compile`"
