"""A component that passes its task's settings to its job, in another pipeline, as KFP compiles it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from ddpipe import components
from ddpipe.components import pytorch_job_with_task_config, train_with_task_config

PAIRS = [
    (train_with_task_config, components.train, {"dataset": "s3://bucket/manifest.json"}),
    (pytorch_job_with_task_config, components.pytorch_job, {}),
]
HANDED_ON = {
    "RESOURCES",
    "ENV",
    "KUBERNETES_AFFINITY",
    "KUBERNETES_TOLERATIONS",
    "KUBERNETES_NODE_SELECTOR",
    "KUBERNETES_VOLUMES",
}


def compiled(component: Any, inputs: dict[str, str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The component and its container, as the engine sees them in a pipeline that sets what can be set."""

    @dsl.pipeline
    def mine() -> None:
        task = component(image="mine:1", backend="auto", **inputs)
        task.set_memory_limit("16Gi").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
        task.set_env_variable("MODE", "fast")
        kubernetes.add_node_selector(task, "pool", "a100")
        kubernetes.add_toleration(task, key="gpu", operator="Exists")
        kubernetes.mount_pvc(task, "photos", "/data")

    compiler.Compiler().compile(mine, str(folder / "mine.yaml"))
    specification = next(yaml.safe_load_all((folder / "mine.yaml").read_text()))
    (described,) = specification["components"].values()
    (executor,) = specification["deploymentSpec"]["executors"].values()
    return described, executor["container"]


@pytest.mark.parametrize(("handing_on", "plain", "inputs"), PAIRS)
def test_settings_of_a_task_are_passed_to_its_job(
    handing_on: Any, plain: Any, inputs: dict[str, str], tmp_path: Path
) -> None:
    described, container = compiled(handing_on, inputs, tmp_path)
    passed = {item["field"]: item.get("applyToTask", False) for item in described["taskConfigPassthroughs"]}
    assert passed == {field: field == "ENV" for field in HANDED_ON}
    assert described["inputDefinitions"]["parameters"]["task_config"]["parameterType"] == "TASK_CONFIG"
    given = container["args"].index("--executor-input")  # it has the values of all inputs
    assert container["args"][given + 1] == "{{$}}"


@pytest.mark.parametrize(("handing_on", "plain", "inputs"), PAIRS)
def test_the_plain_component_is_one_that_older_servers_take(
    handing_on: Any, plain: Any, inputs: dict[str, str], tmp_path: Path
) -> None:
    described, _ = compiled(plain, inputs, tmp_path)
    assert "taskConfigPassthroughs" not in described
    assert "task_config" not in described["inputDefinitions"]["parameters"]
