"""The package for KFP 1.x says the same as the one for KFP 2, in the words of Argo."""

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Command, Group

from ddpipe.__main__ import cli
from ddpipe.pipelines.compile import COMPILED, V1_PACKAGE, compile_packages, compile_v1
from ddpipe.train.recipe import Recipe

WORKFLOW: dict[str, Any] = yaml.safe_load((COMPILED / V1_PACKAGE).read_text())
STEPS = {one["name"]: one for one in WORKFLOW["spec"]["templates"] if "container" in one}
SHOWN = json.loads(WORKFLOW["metadata"]["annotations"]["pipelines.kubeflow.org/pipeline_spec"])["inputs"]
DEFAULTS = {one["name"]: one["value"] for one in WORKFLOW["spec"]["arguments"]["parameters"]}


def command_of(step: str, **values: str) -> list[str]:
    """What the container runs, with every parameter at its default unless `values` says otherwise."""
    known = {
        **DEFAULTS,
        "prepare-run": "a",
        "prepare-training": "s3://b/a",
        "prepare-dataset": "s3://b/m",
    } | values

    def filled(part: str) -> str:
        return re.sub(r"{{inputs\.parameters\.([\w-]+)}}", lambda match: known[match[1]], part)

    return [filled(part) for part in STEPS[step]["container"]["command"]]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options as the command itself understands them."""
    command: Command | None = cli
    while isinstance(command, Group):
        _, *arguments = arguments
        command = command.get_command(None, arguments[0])  # type: ignore[arg-type]
    assert command
    return command.make_context(arguments[0], arguments[1:]).params


@pytest.mark.timeout(600)
def test_the_committed_package_is_current(tmp_path: Path) -> None:
    compile_packages(tmp_path)
    assert compile_v1(tmp_path).read_text() == (COMPILED / V1_PACKAGE).read_text(), "run `make compile`"


def test_both_packages_have_the_same_parameters_texts_and_defaults() -> None:
    spec = next(yaml.safe_load_all((COMPILED / "training.yaml").read_text()))
    v2 = spec["root"]["inputDefinitions"]["parameters"]
    assert {one["name"] for one in SHOWN} == set(v2)
    for one in SHOWN:
        name, other = one["name"], v2[one["name"]]
        assert one["description"].split() == other["description"].split(), name
        kind = type(other["defaultValue"])
        value = one["default"] == "True" if kind is bool else kind(one["default"])
        assert value == other["defaultValue"], name
        assert DEFAULTS[name] == one["default"], name


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_a_command_that_the_command_line_understands(step: str) -> None:
    arguments = command_of(step)
    if arguments[0] == "sh":
        arguments = ["ddpipe", "prepare", *arguments[5:]]
    assert parsed(arguments)


def test_the_recipe_that_is_launched_is_the_default_recipe() -> None:
    assert Recipe.from_json(parsed(command_of("train"))["recipe"]) == Recipe()


def test_every_hyperparameter_reaches_the_recipe() -> None:
    other = {"model": "resnet18", "precision": "bf16"}
    changed = {one.name: other.get(one.name, "0.25") for one in fields(Recipe)}
    sent = json.loads(parsed(command_of("train", **changed))["recipe"])
    assert {name: str(value) for name, value in sent.items()} == changed


def test_what_is_left_is_cleaned_up_however_the_steps_end() -> None:
    assert WORKFLOW["spec"]["onExit"] == "clean-up"
    assert parsed(command_of("clean-up")) == {
        "namespace": None,
        "pipeline": parsed(command_of("train"))["pipeline"],
        "run": "{{workflow.uid}}",
    }


@pytest.mark.parametrize(("given", "name"), [("mine", "mine"), ("", "{{workflow.uid}}")])
def test_a_run_is_named_by_the_user_or_else_by_the_engine(given: str, name: str) -> None:
    script = command_of("prepare", run_name=given)[2].replace("exec ddpipe", "echo")
    told = subprocess.run(
        ["sh", "-c", script, *command_of("prepare", run_name=given)[3:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(f"prepare --run {name} --runs s3://")


@pytest.mark.parametrize("step", STEPS)
def test_every_step_passes_the_restricted_level_and_reads_credentials_from_the_secret_only(step: str) -> None:
    container = STEPS[step]["container"]
    assert container["securityContext"]["runAsNonRoot"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    secret = [one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one]
    assert secret == ["{{workflow.parameters.s3_secret}}"] * 2


def test_only_what_talks_to_the_cluster_uses_the_small_image() -> None:
    small = {name for name, one in STEPS.items() if "launcher" in one["container"]["image"]}
    assert small == {"train", "clean-up"}


@pytest.mark.timeout(600)
def test_on_a_claim_all_data_is_on_the_volume_of_every_step_and_of_the_job(tmp_path: Path) -> None:
    compile_packages(tmp_path)
    workflow = yaml.safe_load(compile_v1(tmp_path, "photos").read_text())
    mounts = [one["container"]["volumeMounts"] for one in workflow["spec"]["templates"] if "container" in one]
    assert mounts == [[{"name": "data", "mountPath": "/data"}]] * len(STEPS)
    assert workflow["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "photos"}
    defaults = {one["name"]: one["value"] for one in workflow["spec"]["arguments"]["parameters"]}
    assert defaults["store"].startswith("/data/")
    assert defaults["runs"].startswith("/data/")
    (train,) = (one for one in workflow["spec"]["templates"] if one["name"] == "train")
    assert "claim:photos:/data" in train["container"]["command"]
