"""The packages for both engines, and the components, say what the declarations say, and nothing else."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError
from ddpipe.jobs import BACKENDS
from ddpipe.parameters import AUTO, Parameter, declared
from ddpipe.pipelines.compile import COMPILED, PIPELINES, _python_v1, compile_all, compile_v1, compile_v2
from ddpipe.pipelines.wiring import MOUNT, Given, Made, Task
from ddpipe.steps import (
    CLEAN_UP,
    DEPLOY,
    EVALUATE,
    EXPORT,
    GATE,
    PREPARE,
    PYTORCH_JOB,
    REGISTER,
    TRAIN,
    TUNE,
    Step,
)
from ddpipe.train.recipe import Recipe

STEPS: dict[str, tuple[Step, ...]] = {
    "training": (PREPARE, TRAIN, EVALUATE, EXPORT, CLEAN_UP),
    "training-gated": (PREPARE, TRAIN, EVALUATE, GATE, EXPORT, DEPLOY, REGISTER, CLEAN_UP),
    "training-tuned": (PREPARE, TUNE, TRAIN, EVALUATE, EXPORT, CLEAN_UP),
    "custom-job": (PYTORCH_JOB, CLEAN_UP),
}
CASES = [(name, step) for name, steps in STEPS.items() for step in steps]
TYPES = {
    str: "STRING",
    int: "NUMBER_INTEGER",
    float: "NUMBER_DOUBLE",
    bool: "BOOLEAN",
    list: "LIST",
    dict: "STRUCT",
}
TYPES_V1 = {
    str: "String",
    int: "Integer",
    float: "Float",
    bool: "Boolean",
    list: "JsonArray",
    dict: "JsonObject",
}
OTHERS: dict[type, Any] = {
    str: 'it\'s "so" & über',
    int: 7,
    float: 0.25,
    bool: True,
    list: ['a "b"'],
    dict: {"ä": "x'y"},
}
"""A value of each kind that is nobody's default and that careless quoting would break."""


def package(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((COMPILED / f"ddpipe-{name}.yaml").read_text()))
    return found


def containers(name: str) -> dict[str, dict[str, Any]]:
    """Of the package for KFP 2, by step."""
    executors = package(name)["deploymentSpec"]["executors"]
    return {key.removeprefix("exec-").replace("-", "_"): one["container"] for key, one in executors.items()}


def templates(name: str) -> dict[str, dict[str, Any]]:
    """Of the package for KFP 1, by step."""
    found = package(f"{name}-minikf")["spec"]["templates"]
    return {one["name"].replace("-", "_"): one for one in found if "container" in one}


def written(value: Any) -> str:
    """A value as both engines put it into an argument."""
    return value if isinstance(value, str) else json.dumps(value)


def understood(arguments: list[str]) -> dict[str, Any]:
    """What the command line makes of a container's command."""
    name, *rest = arguments
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.get_command(click.Context(command), name)
    assert command
    return command.make_context(name, rest).params


def v2_command(container: dict[str, Any], values: dict[str, Any], folder: Path) -> list[str]:
    def filled(part: str) -> str:
        if match := re.fullmatch(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", part):
            return written(values[match[1]])
        if part == "{{$}}":
            return json.dumps({"outputs": {"outputFile": str(folder / "executor.json")}})
        return str(folder / "result") if part.startswith("{{$.outputs") else part

    return [filled(part) for part in (*container["command"], *container["args"])]


def v1_command(template: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Its results go to the working directory: on this machine, /tmp/outputs may be somebody else's."""

    def filled(part: str) -> str:
        if match := re.fullmatch(r"\{\{inputs\.parameters\.([\w-]+)\}\}", part):
            return written(values[re.sub("^(prepare|tune|export)-", "", match[1])])
        return part.removeprefix("/tmp/outputs/")  # noqa: S108 - a container's

    return [filled(part) for part in template["container"]["command"]]


def task_of(name: str, step: Step) -> Task:
    pipeline = PIPELINES[name]
    (task,) = [one for one in (*pipeline.tasks, pipeline.last) if one.step is step]
    return task


def fresh_values(name: str, step: Step) -> dict[str, Any]:
    """Another value than the default for all that a step takes and checks, as arguments and as fields."""
    task = task_of(name, step)
    values = {item.name: OTHERS[item.kind] for item in task.own}
    made = {name: one.result for name, one in task.settled.items() if isinstance(one, Made)}
    values |= {result: values[name] for name, result in made.items()}
    for place in task.objects:
        inside = [item for item in step.parameters if item.form == place.name and not item.alone]
        values[place.name] = {item.name: OTHERS[item.kind] for item in inside}
    fields = {item.form: values[item.name] for item in task.own}
    checked = {item.name: OTHERS[item.kind] for item in PIPELINES[name].checked}
    checked_fields = {item.form: OTHERS[item.kind] for item in PIPELINES[name].checked}
    return {**checked, **checked_fields, **fields, **values}


def reached(step: Step, seen: dict[str, Any]) -> dict[str, Any]:
    """What each of a step's parameters is in the end."""
    values = {**seen, **seen["options"]} if "options" in seen else seen
    return {item.name: values[item.name] for item in step.parameters}


@pytest.mark.slow
def test_the_committed_files_are_current(tmp_path: Path) -> None:
    for path in compile_all(tmp_path):
        name = path.relative_to(tmp_path)
        assert path.read_text() == (COMPILED / name).read_text(), f"run `make compile`: {name}"


@pytest.mark.parametrize("name", PIPELINES)
def test_both_packages_have_the_parameters_that_are_declared(name: str) -> None:
    """Name, type, default and description, one by one."""
    wanted = {item.name: item for item in PIPELINES[name].parameters}
    v2 = package(name)["root"]["inputDefinitions"]["parameters"]
    annotations = package(f"{name}-minikf")["metadata"]["annotations"]
    shown = json.loads(annotations["pipelines.kubeflow.org/pipeline_spec"])["inputs"]
    v1 = {one["name"]: one for one in shown}
    assert set(v2) == set(v1) == set(wanted)
    for key, item in wanted.items():
        assert v2[key]["parameterType"] == TYPES[item.form_kind], key
        assert v2[key].get("defaultValue") == item.default, key
        assert v2[key]["description"].split() == item.help.split(), key
        assert v1[key]["type"] == TYPES_V1[item.form_kind], key
        assert _default_v1(v1[key], item) == item.default, key
        assert v1[key]["description"].split() == item.help.split(), key


def _default_v1(shown: dict[str, Any], item: Parameter) -> Any:
    text = shown.get("default")
    if text is None or item.form_kind is str:
        return text
    return text == "True" if item.kind is bool else json.loads(text)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_runs_without_a_single_parameter(name: str) -> None:
    assert not [item.name for item in PIPELINES[name].parameters if item.required]


@pytest.mark.parametrize(("name", "step"), CASES)
def test_every_value_reaches_the_command_unharmed_on_kfp_2(name: str, step: Step, tmp_path: Path) -> None:
    values = fresh_values(name, step)
    seen = understood(v2_command(containers(name)[step.name], values, tmp_path))
    assert reached(step, seen) == {item.name: OTHERS[item.kind] for item in step.parameters}


@pytest.mark.parametrize(("name", "step"), CASES)
def test_every_value_reaches_the_command_unharmed_on_kfp_1(name: str, step: Step) -> None:
    values = fresh_values(name, step)
    seen = reached(step, understood(v1_command(templates(name)[step.name], values)))
    settled = task_of(name, step).settled
    for item in step.parameters:
        if isinstance(settled.get(item.name, Given(item.form)), (Given, Made)):
            assert seen[item.name] == OTHERS[item.kind], item.name


def test_the_first_step_gets_all_later_parameters(tmp_path: Path) -> None:
    values = fresh_values("training", PREPARE)
    v2 = understood(v2_command(containers("training")["prepare"], values, tmp_path))
    v1 = understood(v1_command(templates("training")["prepare"], values))
    assert dict(v2["check"]) == dict(v1["check"])
    places = {item.name for item in declared(Recipe) if item.alone} | {"train_options"}
    assert places <= dict(v2["check"]).keys()


def test_a_form_has_about_twenty_fields_that_sort_into_groups() -> None:
    names = [item.name for item in PIPELINES["training"].parameters]
    assert len(names) <= 26
    groups = {"cluster", "data", "evaluate", "storage", "train"}
    assert {name.partition("_")[0] for name in names} == groups


@pytest.mark.parametrize("name", PIPELINES)
def test_each_parameter_is_in_the_form_or_set_by_the_pipeline(name: str) -> None:
    for task in (*PIPELINES[name].tasks, PIPELINES[name].last):
        assert [item.name for item in task.open if not item.form] == []


def test_a_field_of_several_steps_names_them() -> None:
    texts = {item.name: item.help for item in PIPELINES["training"].parameters}
    assert texts["storage_endpoint"].endswith("For prepare, train, evaluate, export.")
    assert texts["storage_secret"].endswith("For prepare, train, evaluate, export, clean_up.")


def test_names_of_the_command_line_become_fields() -> None:
    values = {"epochs": 3, "label_smoothing": 0.1, "optimizer": "adamw", "source": "mnist"}
    assert PIPELINES["training"].filled(values) == {
        "train_epochs": "3",  # a server refuses a number for what may be "auto"
        "train_options": {"label_smoothing": 0.1, "optimizer": "adamw"},
        "data_source": "mnist",
    }
    with pytest.raises(ParameterError, match="'epoch' is not a parameter here; did you mean epochs"):
        PIPELINES["training"].filled({"epoch": 3})


@pytest.mark.parametrize("name", PIPELINES)
def test_clean_up_runs_even_if_steps_fail(name: str) -> None:
    cleaned = package(name)["root"]["dag"]["tasks"]["clean-up"]
    assert cleaned["dependentTasks"] == ["exit-handler-1"]
    assert cleaned["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert package(f"{name}-minikf")["spec"]["onExit"] == "clean-up"
    launcher = PYTORCH_JOB if name == "custom-job" else TRAIN
    values = fresh_values(name, launcher)
    swept, launched = (
        understood(v1_command(templates(name)[step.name], values)) for step in (CLEAN_UP, launcher)
    )
    assert swept["run_id"] == launched["run_id"] == "{{workflow.uid}}"
    assert swept["pipeline"] == launched["pipeline"]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_retry_is_for_lost_pods_only(name: str) -> None:
    assert "retryPolicy" not in (COMPILED / f"ddpipe-{name}.yaml").read_text()
    for template in templates(name).values():
        assert template["retryStrategy"] == {"limit": 2, "retryPolicy": "OnError"}


@pytest.mark.parametrize("name", PIPELINES)
def test_credentials_come_from_the_named_secret_only(name: str) -> None:
    """Each variable of each container is a reference; no other container field can hold a value."""
    for template in templates(name).values():
        for variable in template["container"]["env"]:
            assert set(variable) == {"name", "valueFrom"}
            secret = variable["valueFrom"]["secretKeyRef"]
            notifies = variable["name"].startswith("DDPIPE_NOTIFY_")
            named = "ddpipe-notify" if notifies else "{{workflow.parameters.storage_secret}}"
            assert (secret["name"], secret["optional"]) == (named, True)
    platform = list(yaml.safe_load_all((COMPILED / f"ddpipe-{name}.yaml").read_text()))[1]
    kubernetes = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(kubernetes) == len(STEPS[name])
    for one in kubernetes.values():
        secret, *notify = one["secretAsEnv"]
        assert "storage_secret" in str(secret["secretNameParameter"])
        assert one is kubernetes["exec-clean-up"] if notify else one is not kubernetes["exec-clean-up"]
        assert all((other["secretName"], other["optional"]) == ("ddpipe-notify", True) for other in notify)
    assert not any("env" in container for container in containers(name).values())


@pytest.mark.parametrize(("name", "step"), CASES)
def test_every_step_passes_the_restricted_level(name: str, step: Step) -> None:
    template = templates(name)[step.name]
    assert template["container"]["securityContext"]["runAsNonRoot"]
    assert not template["container"]["securityContext"]["allowPrivilegeEscalation"]
    (patched,) = json.loads(template["podSpecPatch"])["containers"]
    asked = json.dumps(patched["resources"])
    resources = containers(name)[step.name]["resources"]
    assert {"resourceCpuRequest", "resourceMemoryRequest", "resourceMemoryLimit"} <= set(resources)
    for_data = step in {PREPARE, EVALUATE, GATE, EXPORT}
    assert ("workflow.parameters.cluster_step_memory" in asked) is for_data
    assert ("cluster_step_memory" in str(resources)) is for_data
    assert template["activeDeadlineSeconds"] == task_of(name, step).timeout


@pytest.mark.parametrize("name", PIPELINES)
def test_parameters_of_a_task_reach_its_group(name: str) -> None:
    """The engine resolves nothing else: a pod's size too."""
    for component in package(name)["components"].values():
        given = component.get("inputDefinitions", {}).get("parameters", {})
        for task in component.get("dag", {}).get("tasks", {}).values():
            taken = task["inputs"]["parameters"].values()
            assert {
                item["componentInputParameter"] for item in taken if "componentInputParameter" in item
            } <= set(given)


def graph_v2(name: str) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The tasks of each group of the package for KFP 2, by the group's task, and its condition, if any."""
    components = package(name)["components"]
    tasks = {
        task: one
        for group in components.values()
        for task, one in group.get("dag", {}).get("tasks", {}).items()
    }
    inside = {
        task: set(components[one["componentRef"]["name"]].get("dag", {}).get("tasks", {}))
        for task, one in tasks.items()
    }
    conditions = {task: one.get("triggerPolicy", {}).get("condition") for task, one in tasks.items()}
    return inside, {task: condition for task, condition in conditions.items() if condition}


def graph_v1(name: str) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The same of the package for KFP 1."""
    templates = package(f"{name}-minikf")["spec"]["templates"]
    dags = {one["name"]: one["dag"]["tasks"] for one in templates if "dag" in one}
    inside = {name: {task["name"] for task in tasks} for name, tasks in dags.items()}
    conditions = {task["name"]: task["when"] for tasks in dags.values() for task in tasks if "when" in task}
    return inside, conditions


def test_a_gated_pipeline_exports_deploys_and_registers_only_on_yes() -> None:
    for graph, exported, given in (
        (graph_v2, "inputs.parameter_values['pipelinechannel--gate-to_export'] == 'yes'", "{}'] != ''"),
        (graph_v1, '"{{tasks.gate.outputs.parameters.gate-to_export}}" == "yes"', '{}}}}}" != ""'),
    ):
        inside, conditions = graph("training-gated")
        (group,) = [name for name, condition in conditions.items() if condition == exported]
        switched = {
            step: [name for name in inside[group] if step in inside.get(name, ()) and name in conditions]
            for step in ("deploy", "register")
        }
        assert "export" in inside[group]
        for step, field in (("deploy", "deploy_service"), ("register", "register_url")):
            (own,) = switched[step]
            assert conditions[own].endswith(given.format(field)), conditions[own]


def test_deploying_and_registering_are_off_by_default_and_do_not_wait_for_each_other() -> None:
    fields = {item.name: item.default for item in PIPELINES["training-gated"].parameters}
    assert (fields["deploy_service"], fields["register_url"]) == ("", "")
    for group in package("training-gated")["components"].values():
        for name, task in group.get("dag", {}).get("tasks", {}).items():
            assert not {"deploy-if", "register-if"} & set(task.get("dependentTasks", ())), name


def test_only_what_talks_to_the_cluster_uses_the_small_image() -> None:
    small = {name for name, one in containers("training").items() if "launcher" in one["image"]}
    assert small == {"train", "clean_up"}


@pytest.mark.slow
def test_a_claim_is_mounted_in_every_step_and_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpipe.pipelines.compile.PIPELINES", {"training": PIPELINES["training"]})
    compile_v2(tmp_path, "photos")
    compile_v1(tmp_path, "photos")
    workflow = yaml.safe_load((tmp_path / "ddpipe-training-minikf.yaml").read_text())
    mounts = [one["container"]["volumeMounts"] for one in workflow["spec"]["templates"] if "container" in one]
    assert mounts == [[{"name": "data", "mountPath": MOUNT}]] * 5
    assert workflow["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "photos"}
    spec, platform = yaml.safe_load_all((tmp_path / "ddpipe-training.yaml").read_text())
    for one in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        assert [(mount["mountPath"], mount["constant"]) for mount in one["pvcMount"]] == [(MOUNT, "photos")]
    v2 = spec["root"]["inputDefinitions"]["parameters"]
    v1 = {one["name"]: one["value"] for one in workflow["spec"]["arguments"]["parameters"]}
    for field, name in (("storage_datasets", "store"), ("storage_runs", "runs")):
        assert v2[field]["defaultValue"] == v1[field] == f"{MOUNT}/ddpipe/{name}"
    mounted = {"volumes": [f"claim:photos:{MOUNT}"]}
    assert v2["cluster_options"]["defaultValue"] == json.loads(v1["cluster_options"]) == mounted


def test_a_failed_compilation_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ddpipe-training.yaml").write_text("old")

    def half(folder: Path, *_: object, **__: object) -> None:
        (folder / "ddpipe-training.yaml").write_text("new")
        raise OSError("disk full")

    monkeypatch.setattr("ddpipe.pipelines.compile.compile_v2", half)
    with pytest.raises(OSError, match="disk full"):
        compile_all(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ddpipe-training.yaml"]
    assert (tmp_path / "ddpipe-training.yaml").read_text() == "old"


@pytest.mark.parametrize("name", PIPELINES)
def test_steps_are_never_cached(name: str) -> None:
    """A run whose folder was deleted would be green with nothing written: steps see for themselves."""
    groups = [package(name)["root"], *package(name)["components"].values()]
    tasks = [task for group in groups for task in group.get("dag", {}).get("tasks", {}).values()]
    caching = [task["cachingOptions"] for task in tasks if "cachingOptions" in task]
    assert caching == [{}] * len(package(name)["deploymentSpec"]["executors"])


def test_packages_differ_in_menus_and_in_who_may_run_them_only() -> None:
    paths = [COMPILED / f"ddpipe-training{kind}.yaml" for kind in ("", "-dropdowns")]
    (plain, before), (offering, after) = (list(yaml.safe_load_all(path.read_text())) for path in paths)
    for one in after["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        assert one.pop("securityContext") == {"runAsNonRoot": True}
    assert after == before
    listed = offering["root"]["inputDefinitions"]["parameters"]
    choices = {name: one.pop("literals") for name, one in listed.items() if "literals" in one}
    assert choices.keys() == {"cluster_backend", "data_source", "train_if_unchanged"}
    assert choices["cluster_backend"] == [AUTO, *BACKENDS]
    assert offering == plain


@pytest.mark.parametrize("name", [f"{name}{kind}" for name in PIPELINES for kind in ("", "-dropdowns")])
def test_a_package_is_valid_for_the_engines_messages(name: str) -> None:
    path = COMPILED / f"ddpipe-{name}.yaml"
    specification, platform = yaml.safe_load_all(path.read_text())
    json_format.ParseDict(specification, PipelineSpec())
    for one in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        json_format.ParseDict(one, KubernetesExecutorConfig())
        assert one["activeDeadlineSeconds"]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_guide_has_a_row_for_every_field_and_every_option(name: str) -> None:
    guide = (COMPILED / "README.md").read_text()
    section = guide.partition(f"## ddpipe-{name}\n")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| \W*`(\w+)` \|", section, re.MULTILINE))
    pipeline = PIPELINES[name]
    members = {one.name for item in pipeline.parameters for one in pipeline.members(item.name)}
    assert rows == {item.name for item in pipeline.parameters} | members


@pytest.mark.slow
def test_two_that_compile_at_once_make_one_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "requirements.txt"
    lock.touch()
    monkeypatch.setattr("ddpipe.pipelines.compile._V1_LOCK", lock)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: _python_v1(), range(2))
    assert first == second
    subprocess.run([first, "-m", "pip", "--version"], check=True)
    assert len(list(tmp_path.iterdir())) == 2
