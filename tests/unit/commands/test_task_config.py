"""What is set on a task of a pipeline reaches the pods of its job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from launch_samples import a_job

from ddpipe.__main__ import cli
from ddpipe.commands.step import with_task_config
from ddpipe.errors import ParameterError
from ddpipe.jobs.backend import all_backends
from ddpipe.jobs.options import LaunchOptions

UNSET = dict.fromkeys(("affinity", "tolerations", "nodeSelector", "env", "volumes", "volumeMounts")) | {
    "resources": {}
}
"""What the engine hands over where nothing was set."""
SECRET = {"secretKeyRef": {"name": "keys", "key": "id"}}


def pod_of(settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The pod of a job whose task has these settings."""
    values = {**LaunchOptions(image="mine:1").to_dict(), **options}
    job = a_job(**with_task_config({**UNSET, **settings}, values))
    spec: dict[str, Any] = all_backends()[-1].pod(job)["spec"]
    return spec


def container_of(settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(settings, **options)["containers"][0]
    return container


@pytest.mark.parametrize("settings", [{}, UNSET])
def test_a_task_without_settings_changes_nothing(settings: dict[str, Any]) -> None:
    values = LaunchOptions(image="mine:1", memory="2Gi").to_dict()
    assert with_task_config(settings, values) == values


def test_a_limit_of_the_task_is_the_limit_of_each_pod() -> None:
    resources = container_of({"resources": {"limits": {"memory": "16Gi"}}}, cpu="2")["resources"]
    assert resources["limits"] == resources["requests"] == {"cpu": "2", "memory": "16Gi"}


def test_a_request_without_a_limit_is_the_limit() -> None:
    asked = {"limits": {"cpu": "4"}, "requests": {"cpu": "500m", "memory": "8Gi"}}
    resources = container_of({"resources": asked})["resources"]
    assert resources["limits"] == {"cpu": "4", "memory": "8Gi"}
    assert resources["requests"] == {"cpu": "500m", "memory": "8Gi"}


def test_an_accelerator_gets_a_process_for_each() -> None:
    settings = {"resources": {"limits": {"amd.com/gpu": "2"}}}
    options = with_task_config(settings, LaunchOptions(image="mine:1").to_dict())
    assert a_job(**options).processes_per_pod == 2
    assert container_of(settings)["resources"]["limits"]["amd.com/gpu"] == "2"


def test_where_the_pods_run_is_what_both_say() -> None:
    taint = {"key": "gpu", "operator": "Exists", "tolerationSeconds": 60}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    settings = {"nodeSelector": {"pool": "a100"}, "tolerations": [taint], "affinity": affinity}
    own = {"node_selector": {"zone": "b", "pool": "any"}, "tolerations": [{"key": "spot"}]}
    pod = pod_of(settings, **own)
    assert pod["nodeSelector"] == {"zone": "b", "pool": "a100"}
    assert [one for one in pod["tolerations"] if one["key"] in {"spot", "gpu"}] == [{"key": "spot"}, taint]
    assert pod["affinity"] == affinity


def test_variables_and_volumes_come_beside_those_of_the_job() -> None:
    settings = {
        "env": [
            {"name": "MODE", "value": "fast"},
            {"name": "HOME", "valueFrom": SECRET},
            {"name": "AWS_ACCESS_KEY_ID", "value": "me"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    options = {"env": {"MODE": "slow", "MORE": "1"}, "s3_secret": "store"}
    pod = pod_of(settings, **options)
    (container,) = pod["containers"]
    variables = {item.pop("name"): item for item in container["env"]}
    assert (variables["MODE"], variables["MORE"]) == ({"value": "fast"}, {"value": "1"})
    assert (variables["HOME"], variables["AWS_ACCESS_KEY_ID"]) == ({"valueFrom": SECRET}, {"value": "me"})
    assert [volume["name"] for volume in pod["volumes"]] == ["shm", "data"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/data"]  # noqa: S108


def test_volumes_get_valid_names() -> None:
    volume, mount = (
        {"name": "ca.crt", "configMap": {"name": "ca.crt"}},
        {"name": "ca.crt", "mountPath": "/ca"},
    )
    pod = pod_of({"volumes": [volume], "volumeMounts": [mount]})
    name = pod["volumes"][1]["name"]
    assert "." not in name
    assert pod["volumes"][1]["configMap"] == {"name": "ca.crt"}
    assert pod["containers"][0]["volumeMounts"][1] == {"name": name, "mountPath": "/ca"}


def test_a_patch_of_the_component_s_user_stays() -> None:
    own = {"name": "pytorch", "env": [{"name": "A", "value": "1"}]}
    patch = {"spec": {"hostIPC": True, "containers": [own], "volumes": [{"name": "shm", "$patch": "delete"}]}}
    settings = {"env": [{"name": "B", "value": "2"}], "volumes": [{"name": "v", "emptyDir": {}}]}
    pod = pod_of(settings, patch=patch)
    assert pod["hostIPC"] is True
    assert {"A", "B"} <= {item["name"] for item in pod["containers"][0]["env"]}
    assert [volume["name"] for volume in pod["volumes"]] == ["v"]


def test_malformed_settings_are_reported_together() -> None:
    with pytest.raises(ParameterError) as caught:
        with_task_config({"nodeselector": {}, "env": {"A": "1"}, "volumes": ["a"]}, {})
    assert "3 problems" in caught.value.seen
    assert "'nodeselector' is not a field of a TaskConfig" in caught.value.seen
    assert "env is {'A': '1'}, not a list" in caught.value.seen
    assert "volumes is ['a'], not a list of objects" in caught.value.seen


def test_settings_that_a_job_cannot_have_are_rejected() -> None:
    values = {**LaunchOptions(image="mine:1").to_dict(), "backend": "local"}
    limits = {"nvidia.com/gpu": "a few", "amd.com/gpu": "1"}
    with pytest.raises(ParameterError) as caught:
        with_task_config({"resources": {"limits": limits}}, values)
    assert "3 problems" in caught.value.seen
    assert "there is no job" in caught.value.seen


def test_the_command_reads_settings_from_the_executor_input() -> None:
    settings = {**UNSET, "resources": {"limits": {"memory": "much"}}}
    given = json.dumps({"inputs": {"parameterValues": {"task_config": settings, "nodes": 2}}, "outputs": {}})
    ran = CliRunner().invoke(cli, ["launch", "--image", "mine:1", "--executor-input", given])
    assert ran.exit_code == ParameterError.exit_code
    assert "memory is 'much', not a Kubernetes quantity" in ran.stderr
