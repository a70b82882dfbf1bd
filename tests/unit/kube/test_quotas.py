"""Whether a quota leaves enough for a job, and whether it applies to the job at all."""

from __future__ import annotations

from typing import Any

import pytest

from ddpipe.kube.capacity import shortages

JOBS = {"count/pytorchjobs.kubeflow.org": 1.0}


def a_pod_spec(**spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    return {
        "containers": [{"name": "pytorch", "resources": {"limits": amounts, "requests": amounts}}],
        **spec,
    }


def short(hard: dict[str, str], pod: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    quota = {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": {}}}
    return list(shortages(quota, pod or a_pod_spec(), 2, JOBS))


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


def one(scope: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"scopeName": scope, "operator": operator} | ({"values": list(values)} if values else {})
    return {"scopeSelector": {"matchExpressions": [expression]}}


@pytest.mark.parametrize(
    ("spec", "applies"),
    [
        ({}, True),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating"]}, True),
        ({"scopes": ["NotTerminating", "BestEffort"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        (one("PriorityClass", "In", "high", "low"), True),
        (one("PriorityClass", "In", "low"), False),
        (one("PriorityClass", "NotIn", "low"), True),
        (one("PriorityClass", "NotIn", "high"), False),
        (one("PriorityClass", "Exists"), True),
        (one("PriorityClass", "DoesNotExist"), False),
        (one("CrossNamespacePodAffinity", "Exists"), False),
    ],
)
def test_a_quota_for_other_pods_does_not_count(spec: dict[str, Any], applies: bool) -> None:
    assert bool(short({"pods": "0"}, a_pod_spec(priorityClassName="high"), **spec)) is applies


def test_a_resource_without_a_limit_is_free() -> None:
    assert short({}) == short({"nvidia.com/gpu": "0", "services": "0"}) == []
    quota = {"spec": {}, "status": {}}
    assert list(shortages(quota, a_pod_spec(), 2, JOBS)) == [], "one that the controller has not seen yet"


def test_a_quota_with_scopes_counts_pods_only() -> None:
    assert short({"count/pytorchjobs.kubeflow.org": "0"}, scopes=["NotTerminating"]) == []


def test_a_priority_class_s_quota_is_for_its_jobs_only() -> None:
    assert short({"pods": "0"}, scopes=["PriorityClass"]) == []
    assert short({"pods": "0"}, **one("PriorityClass", "DoesNotExist"))


def test_a_pod_that_asks_for_nothing_is_best_effort() -> None:
    nothing = {"containers": [{"name": "pytorch"}]}
    assert short({"pods": "0"}, nothing, scopes=["BestEffort"])
    assert short({"pods": "0"}, nothing, scopes=["NotBestEffort"]) == []


def test_a_pod_with_a_deadline_is_terminating() -> None:
    assert short({"pods": "0"}, a_pod_spec(activeDeadlineSeconds=60), scopes=["Terminating"])
    assert short({"pods": "0"}, a_pod_spec(activeDeadlineSeconds=60), scopes=["NotTerminating"]) == []
