"""The form in the Kubeflow UI: three fields train a model of one's own images.

The commands of the compiled package run here one after the other, with the values that the engine would fill
in; folders of this machine replace the bucket, and training is on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands_here import ddpipe
from samples import a_picture

from ddpipe.model.package import load_package
from ddpipe.pipelines.compile import COMPILED

STEPS = ("prepare", "train", "evaluate", "export")


def package() -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((COMPILED / "ddpipe-training.yaml").read_text()))
    return found


def form(package: Mapping[str, Any], filled: Mapping[str, Any]) -> dict[str, Any]:
    """All fields: those filled in, and the others with their defaults."""
    fields = package["root"]["inputDefinitions"]["parameters"]
    assert filled.keys() <= fields.keys()
    whole = {name for name, field in fields.items() if field["parameterType"] == "NUMBER_INTEGER"}
    values = {name: filled.get(name, field.get("defaultValue")) for name, field in fields.items()}
    return {name: int(value) if name in whole else value for name, value in values.items()}


def value_of(given: Mapping[str, Any], fields: Mapping[str, Any], done: Mapping[str, Path]) -> Any:
    """An input of a task, as the engine resolves it."""
    match given:
        case {"componentInputParameter": name}:
            return fields[name.removeprefix("pipelinechannel--")]
        case {"taskOutputParameter": {"producerTask": task, "outputParameterKey": name}}:
            return (done[task] / name).read_text()
        case {"runtimeValue": {"constant": constant}}:
            ids = {"{{$.pipeline_job_uuid}}": "form", "{{$.pipeline_job_name}}": "Form"}
            return ids.get(constant, constant)
    raise AssertionError(given)


def arguments_of(container: Mapping[str, Any], inputs: Mapping[str, Any], folder: Path) -> list[str]:
    """The command of a step, its inputs and the files of its results filled in."""

    def filled(part: str) -> str:
        if match := re.fullmatch(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", part):
            value = inputs[match[1]]
            return value if isinstance(value, str) else json.dumps(value)
        if match := re.fullmatch(r"\{\{\$\.outputs\.\w+\['(\w+)'\]\.\w+\}\}", part):
            return str(folder / match[1])
        return (
            json.dumps({"outputs": {"outputFile": str(folder / "executor.json")}})
            if part == "{{$}}"
            else part
        )

    return [filled(part) for part in (*container["command"][1:], *container["args"])]


@pytest.mark.slow
def test_three_fields_train_a_model_of_own_images(tmp_path: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            picture = a_picture(100 * label + number, (48, 32)).point(
                lambda value, base=100 * label: base + value // 2
            )
            picture.save(tmp_path / "photos" / name / f"{number}.jpg")
    spec = package()
    three = {"data_path": str(tmp_path / "photos"), "data_name": "photos", "train_minutes": 0.05}
    here = {
        "storage_datasets": str(tmp_path / "store"),
        "storage_runs": str(tmp_path / "runs"),
        "cluster_backend": "local",
    }
    fields, done = form(spec, {**three, **here}), {}
    tasks = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert tuple(sorted(tasks, key=STEPS.index)) == STEPS
    for step in STEPS:
        task = tasks[step]
        inputs = {name: value_of(given, fields, done) for name, given in task["inputs"]["parameters"].items()}
        component = spec["components"][task["componentRef"]["name"]]
        container = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        done[step] = tmp_path / step
        command = arguments_of(container, inputs, done[step])
        if step == "prepare":  # it checks the values of later steps, of which training here is none
            command = ["auto" if part == "local" else part for part in command]
        ran = ddpipe(tmp_path, *command)
        assert ran.exit_code == 0, ran.stderr
    made = load_package((done["export"] / "model").read_text())
    assert made.signature.classes == ("cat", "dog")
    assert made.lineage["dataset"]["name"] == "photos"
    assert made.lineage["training"]["recipe"]["minutes"] == 0.05
