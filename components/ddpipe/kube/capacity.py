"""Whether the cluster's nodes have room for a job: labels, taints, sizes, and all of its pods at once."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpipe.kube.quantities import quantity
from ddpipe.kube.resources import Object

Amounts = Mapping[str, float]

_PODS = "pods"
_ROUNDING = 1e-9
_REPELLING = {"NoSchedule", "NoExecute"}
# These come and go with the node's state: cordoned, not ready, short of memory.
_PASSING_TAINTS = "node.kubernetes.io/"
# Controllers whose pods come back when they go, so that their room never becomes free.
_SERVICES = {"DaemonSet", "ReplicaSet", "StatefulSet", "Node"}
_WAY_OUT = "or say that nodes can be added (autoscaling)"


@dataclass(frozen=True, slots=True)
class Room:
    """What the nodes mean for a job.

    Attributes:
        problems: Why it could never run.
        remarks: Why it may have to wait.
    """

    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def room(pod: Object, count: int, nodes: Sequence[Object], pods: Sequence[Object] | None) -> Room:
    """Whether `count` pods could run at the same time.

    Node affinity is not looked at: a job is never refused for it.

    Args:
        pod: The spec of each of the job's pods.
        count: How many there are.
        nodes: All nodes.
        pods: All pods on them that have not ended; None if they cannot be seen.
    """
    asked = {**requests(pod), _PODS: 1.0}
    selected = [node for node in nodes if _is_selected(pod, node)]
    if not selected:
        return Room((_unselected(pod),))
    large = [node for node in selected if _slots(node, asked, ()) > 0]
    if not large:
        return Room(("; ".join(_lacking(asked, selected)) + f": ask for less per pod, {_WAY_OUT}",))
    tolerated = [node for node in large if not _taints(pod, node)]
    if not tolerated:
        return Room((_tainted(pod, asked, large),))
    staying = _by_node(filter(_stays, pods or ()))
    ever = sum(_slots(node, asked, staying[_name(node)]) for node in tolerated)
    if ever < count:
        problem = (
            f"the nodes can take {ever:g} of the job's {count} pods at the same time, each with "
            f"{_amounts(asked)}; {_free(tolerated, asked, staying)}: "
            f"ask for less per pod or for fewer pods, {_WAY_OUT}"
        )
        return Room((problem,))
    now = fitting(pod, count, nodes, pods or ())
    if now < count:
        ready, running = _ready(pod, nodes), _by_node(pods or ())
        remark = f"at the moment the nodes have room for {now} of {count} pods: "
        return Room(remarks=(remark + _free(ready, asked, running),))
    return Room()


def fitting(pod: Object, count: int, nodes: Sequence[Object], pods: Sequence[Object]) -> int:
    """For how many of `count` pods the nodes have room at this moment; arguments as of `room`."""
    asked, running = {**requests(pod), _PODS: 1.0}, _by_node(pods)
    free = sum(_slots(node, asked, running[_name(node)]) for node in _ready(pod, nodes))
    return int(min(count, free))


def _ready(pod: Object, nodes: Sequence[Object]) -> list[Object]:
    """The nodes that take such pods now, as far as there is room."""
    return [node for node in nodes if _is_selected(pod, node) and not _taints(pod, node, passing=True)]


def _by_node(pods: Iterable[Object]) -> defaultdict[str, list[Object]]:
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        found[pod["spec"].get("nodeName", "")].append(pod)
    return found


def requests(pod: Object, kind: str = "requests") -> dict[str, float]:
    """What a pod's spec asks for, or with `kind` "limits" may use, of each resource."""
    total: dict[str, float] = defaultdict(float)
    for container in pod["containers"]:
        for name, amount in _of_container(container, kind).items():
            total[name] += amount
    for container in pod.get("initContainers") or ():
        for name, amount in _of_container(container, kind).items():
            total[name] = max(total[name], amount)
    return dict(total)


def _of_container(container: Object, kind: str) -> dict[str, float]:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get(kind) or {})}
    return {name: quantity(str(amount)) for name, amount in amounts.items()}


def _name(node: Object) -> str:
    name: str = node["metadata"]["name"]
    return name


def _is_selected(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (pod.get("nodeSelector") or {}).items())


def _unselected(pod: Object) -> str:
    selector = ", ".join(f"{key}={value}" for key, value in (pod.get("nodeSelector") or {}).items())
    if not selector:
        return f"the cluster has no node: add one, {_WAY_OUT}"
    return f"no node has the labels {selector}: see kubectl get nodes --show-labels"


def _allocatable(node: Object, resource: str) -> float:
    amounts = node["status"].get("allocatable") or {}
    return quantity(str(amounts[resource])) if resource in amounts else math.inf if resource == _PODS else 0.0


def _rest(node: Object, asked: Amounts, others: Iterable[Object]) -> dict[str, float]:
    """What a node has left beside other pods, of each resource asked for."""
    used: defaultdict[str, float] = defaultdict(float)
    for other in others:
        for name, amount in {**requests(other["spec"]), _PODS: 1.0}.items():
            used[name] += amount
    return {name: max(0.0, _allocatable(node, name) - used[name]) for name in asked}


def _slots(node: Object, asked: Amounts, others: Iterable[Object]) -> float:
    """How many more such pods a node takes beside others."""
    rest = _rest(node, asked, others)
    times = min(rest[name] / amount for name, amount in asked.items() if amount)
    return times if math.isinf(times) else math.floor(times + _ROUNDING)


def _lacking(asked: Amounts, nodes: Sequence[Object]) -> Iterator[str]:
    """Which resource is short; together they can be, though each alone is not."""
    short = False
    for name, amount in asked.items():
        largest = max(_allocatable(node, name) for node in nodes)
        if amount > largest:
            short = True
            yield (
                f"no node can ever take a pod: {_amount(name, amount)} asked, the largest node has "
                f"{_amount(name, largest)}"
            )
    if not short:
        yield f"no single node can ever take a pod with {_amounts(asked)} together"


def _taints(pod: Object, node: Object, *, passing: bool = False) -> list[Object]:
    """The node's taints that keep the pod away; with `passing` also those that come and go."""
    return [
        taint
        for taint in node.get("spec", {}).get("taints") or ()
        if taint["effect"] in _REPELLING
        and (passing or not taint["key"].startswith(_PASSING_TAINTS))
        and not any(_tolerates(toleration, taint) for toleration in pod.get("tolerations") or ())
    ]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _tainted(pod: Object, asked: Amounts, nodes: Sequence[Object]) -> str:
    devices = [name for name in asked if "/" in name]
    which = f"nodes with {', '.join(devices)}" if devices else "nodes that could take a pod"
    taints = {_taint(taint): taint for node in nodes for taint in _taints(pod, node)}
    first = next(iter(taints.values()))
    toleration = {"key": first["key"], "operator": "Exists", "effect": first["effect"]}
    return (
        f"{which} exist, but all have a taint that the job does not tolerate ({', '.join(taints)}): "
        f"give a toleration, such as {json.dumps(toleration)}"
    )


def _taint(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _stays(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["kind"] in _SERVICES for owner in owners)


def _free(nodes: Sequence[Object], asked: Amounts, others: Mapping[str, Sequence[Object]]) -> str:
    """What the roomiest nodes have left, of the resource that is short there."""
    left = []
    for node in nodes:
        rest = _rest(node, asked, others.get(_name(node), ()))
        short = min((name for name in asked if asked[name]), key=lambda name: rest[name] / asked[name])
        left.append((rest[short] / asked[short], f"{_name(node)} has {_amount(short, rest[short])} free"))
    best = [text for _, text in sorted(left, reverse=True)[:3]]
    more = f", and {len(left) - len(best)} nodes have no more" if len(left) > len(best) else ""
    return ", ".join(best) + more if best else "no node is ready"


def _amounts(amounts: Amounts) -> str:
    return ", ".join(_amount(name, amount) for name, amount in amounts.items() if name != _PODS)


def _amount(name: str, amount: float) -> str:
    """An amount for people: memory in GiB."""
    if name in {"memory", "ephemeral-storage"}:
        return f"{amount / 2**30:.3g}Gi of {name}"
    return f"{amount:.4g} of {name}"
