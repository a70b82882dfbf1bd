"""Whether a quota leaves enough for a job."""

from __future__ import annotations

from typing import Any

import pytest

from ddpipe.kube.capacity import shortages

JOBS = {"count/pytorchjobs.kubeflow.org": 1.0}


def a_pod_spec() -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    return {"containers": [{"name": "pytorch", "resources": {"limits": amounts, "requests": amounts}}]}


def short(hard: dict[str, str], **spec: Any) -> list[str]:
    quota = {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": {}}}
    return list(shortages(quota, a_pod_spec(), 2, JOBS))


@pytest.mark.parametrize(
    ("name", "enough", "little"),
    [
        ("pods", "2", "1"),
        ("count/pods", "2", "1"),
        ("cpu", "4", "3"),
        ("requests.cpu", "4", "3900m"),
        ("limits.memory", "8Gi", "7Gi"),
        ("requests.nvidia.com/gpu", "2", "1"),
        ("count/pytorchjobs.kubeflow.org", "1", "0"),
    ],
)
def test_a_quota_counts_the_whole_job(name: str, enough: str, little: str) -> None:
    assert short({name: enough}) == []
    (problem,) = short({name: little})
    assert f"of {name} (0 of {little} in use), the job needs" in problem


def test_what_is_in_use_is_subtracted() -> None:
    quota = {"spec": {}, "status": {"hard": {"pods": "10"}, "used": {"pods": "9"}}}
    assert list(shortages(quota, a_pod_spec(), 2, {})) == [
        "leaves 1 of pods (9 of 10 in use), the job needs 2: request less, wait, or raise it"
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"scopes": ["NotTerminating"]},
        {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}},
    ],
)
def test_a_quota_for_some_pods_rejects_no_job(spec: dict[str, Any]) -> None:
    assert short({"pods": "0"}, **spec) == []


def test_a_resource_without_a_limit_is_free() -> None:
    assert short({}) == short({"nvidia.com/gpu": "0", "services": "0"}) == []
    quota = {"spec": {}, "status": {}}
    assert list(shortages(quota, a_pod_spec(), 2, JOBS)) == [], "one that the controller has not seen yet"
