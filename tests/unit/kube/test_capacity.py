"""Whether nodes can take a job."""

from __future__ import annotations

from typing import Any

import pytest

from ddpipe.kube import capacity
from ddpipe.kube.capacity import Node, NodeFindings, Usage, requests


def check(
    pod: dict[str, Any],
    count: int,
    nodes: list[dict[str, Any]],
    pods: list[dict[str, Any]] | None,
) -> NodeFindings:
    """What the nodes mean for a job, given these pods."""
    usage = Usage()
    for other in pods or ():
        usage.add(other)
    return capacity.check(pod, count, list(map(Node.of, nodes)), None if pods is None else usage)


def a_pod_spec(cpu: str = "1", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    limits = {"cpu": cpu, "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"containers": [{"name": "pytorch", "resources": {"limits": limits, "requests": limits}}], **spec}


def a_node(name: str = "n1", *, cpu: str = "2", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": amounts}}


def running(cpu: str, owner: str = "Job", node: str = "n1") -> dict[str, Any]:
    """Somebody's pod on a node."""
    metadata = {"ownerReferences": [{"kind": owner, "controller": True}]}
    return {"metadata": metadata, "spec": {**a_pod_spec(cpu), "nodeName": node}}


def a_taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def test_pods_that_fit_only_one_by_one_are_a_problem() -> None:
    found = check(a_pod_spec(), 2, [a_node()], [running("100m", "DaemonSet")])
    (problem,) = found.problems
    assert problem == (
        "the nodes can take 1 of the job's 2 pods at the same time, each with 1 of cpu, 1Gi of memory; "
        "n1 has 1.9 of cpu free: request less per pod or fewer pods, or set preflight to autoscaling "
        "if nodes can be added"
    )


@pytest.mark.parametrize("owner", ["DaemonSet", "Node"])
def test_pods_of_a_node_count_for_good(owner: str) -> None:
    assert check(a_pod_spec(), 2, [a_node()], [running("500m", owner)]).problems


def test_requests_of_other_pods_add_up() -> None:
    others = [running("500m", "DaemonSet"), running("400m", "DaemonSet"), running("100m", "Node")]
    assert check(a_pod_spec(), 1, [a_node()], others) == NodeFindings()
    assert "n1 has 1 of cpu free" in check(a_pod_spec(), 2, [a_node()], others).problems[0]


def test_a_pod_that_ends_some_day_is_only_a_remark() -> None:
    found = check(a_pod_spec(), 2, [a_node()], [running("500m")])
    assert found == NodeFindings(
        remarks=("at the moment the nodes can take 1 of 2 pods: n1 has 1.5 of cpu free",)
    )


def test_pods_on_several_nodes_add_up() -> None:
    nodes = [a_node("n1"), a_node("n2", cpu="3")]
    assert check(a_pod_spec(), 5, nodes, []) == NodeFindings()
    assert "5 of the job's 6 pods" in check(a_pod_spec(), 6, nodes, []).problems[0]


def test_pods_that_cannot_be_seen_are_no_problem() -> None:
    assert check(a_pod_spec(), 2, [a_node()], None) == NodeFindings()


def test_a_node_takes_no_more_pods_than_it_may() -> None:
    node = a_node(cpu="64")
    node["status"]["allocatable"]["pods"] = "3"
    assert "2 of the job's 3 pods" in check(a_pod_spec(), 3, [node], [running("1", "DaemonSet")]).problems[0]


def test_tenths_add_up() -> None:
    assert check(a_pod_spec("100m"), 3, [a_node(cpu="300m")], []) == NodeFindings()


def test_tainted_gpu_nodes_are_named_with_the_toleration() -> None:
    nodes = [a_node("cpu", cpu="64"), a_node("gpu", gpus=8, taints=[a_taint("nvidia.com/gpu", "present")])]
    (problem,) = check(a_pod_spec(gpus=1), 1, nodes, None).problems
    assert problem == (
        "nodes with nvidia.com/gpu exist, but all have a taint that the job does not tolerate "
        "(nvidia.com/gpu=present:NoSchedule): give a toleration, such as "
        '{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}'
    )


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "k", "operator": "Exists"},
        {"key": "k", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
        {"key": "k", "value": "v"},
    ],
)
def test_a_toleration_opens_a_node(toleration: dict[str, str]) -> None:
    nodes = [a_node(taints=[a_taint("k", "v")])]
    assert check(a_pod_spec(tolerations=[toleration]), 1, nodes, None) == NodeFindings()


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "other", "operator": "Exists"},
        {"key": "k", "operator": "Exists", "effect": "NoExecute"},
        {"key": "k", "value": "w"},
        {"key": "k"},
    ],
)
def test_another_toleration_does_not(toleration: dict[str, str]) -> None:
    nodes = [a_node(taints=[a_taint("k", "v")])]
    assert check(a_pod_spec(tolerations=[toleration]), 1, nodes, None).problems


def test_a_taint_that_only_prefers_is_no_problem() -> None:
    assert (
        check(a_pod_spec(), 1, [a_node(taints=[a_taint("k", effect="PreferNoSchedule")])], None)
        == NodeFindings()
    )


def test_a_node_that_is_cordoned_may_come_back() -> None:
    cordoned = a_node(taints=[a_taint("node.kubernetes.io/unschedulable")])
    assert check(a_pod_spec(), 1, [cordoned], None) == NodeFindings(
        remarks=("at the moment the nodes can take 0 of 1 pods: no node is ready",)
    )


def test_a_pod_larger_than_any_node_is_a_problem() -> None:
    (problem,) = check(a_pod_spec("16", gpus=1), 1, [a_node(), a_node("n2", cpu="8")], None).problems
    assert "16 of cpu requested, the largest node has 8 of cpu" in problem
    assert "1 of nvidia.com/gpu requested, the largest node has 0 of nvidia.com/gpu" in problem


def test_no_single_node_may_have_all_that_is_asked() -> None:
    nodes = [a_node("n1", cpu="16"), a_node("n2", gpus=8)]
    (problem,) = check(a_pod_spec("8", gpus=1), 1, nodes, None).problems
    assert "no single node can ever take a pod with 8 of cpu, 1Gi of memory, 1 of nvidia.com/gpu" in problem


def test_labels_that_no_node_has_are_a_problem() -> None:
    pod = a_pod_spec(nodeSelector={"zone": "b"})
    assert "no node has the labels zone=b" in check(pod, 1, [a_node()], None).problems[0]
    assert "the cluster has no node" in check(a_pod_spec(), 1, [], None).problems[0]


def test_of_many_nodes_those_with_the_most_free_are_named() -> None:
    nodes = [a_node(f"n{number}", cpu=f"{number}00m") for number in range(5, 10)]
    (problem,) = check(a_pod_spec("500m"), 6, nodes, []).problems
    assert "5 of the job's 6 pods" in problem
    roomiest = "n9 has 0.9 of cpu free, n8 has 0.8 of cpu free, n7 has 0.7 of cpu free"
    assert f"{roomiest}, and 2 nodes have no more: request less" in problem


def test_the_resource_that_is_short_is_named() -> None:
    node = a_node(cpu="64")
    node["status"]["allocatable"]["memory"] = "1536Mi"
    assert "n1 has 1.5Gi of memory free" in check(a_pod_spec(), 2, [node], []).problems[0]


def test_a_pod_that_no_node_needs_may_end_or_move() -> None:
    lonely = {"metadata": {}, "spec": {**a_pod_spec("500m"), "nodeName": "n1"}}
    adopted = running("500m", "DaemonSet")
    adopted["metadata"]["ownerReferences"][0]["controller"] = False
    for pod in (lonely, adopted, running("500m", "ReplicaSet")):
        assert not check(a_pod_spec(), 2, [a_node()], [pod]).problems


def test_pods_without_a_node_do_not_count() -> None:
    assert check(a_pod_spec(), 2, [a_node()], [running("2", "DaemonSet", node="")]) == NodeFindings()


def test_requests_of_all_containers_count() -> None:
    pod = a_pod_spec("1")
    pod["containers"].append({"name": "helper", "resources": {"limits": {"cpu": "500m"}}})
    assert requests(pod)["cpu"] == 1.5
    pod["initContainers"] = [{"name": "first", "resources": {"requests": {"cpu": "2"}}}]
    assert requests(pod)["cpu"] == 2
