"""Whether nodes and quotas can take a job: labels, taints, sizes, and all of its pods at once.

No part of the API answers this before a job exists: a server-side dry run looks at neither nodes nor quotas,
and the scheduler looks at pods one by one, once they are there. It is worth a few hundred lines because a job
that can never start is rejected with the numbers, and an elastic job starts with as many pods as fit.

It is advice with a bound, not a scheduler: node affinity and priorities are ignored, and clusters of more
than a few pages are not judged (see launching/nodes.py).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpipe.kube.resources import Object

Amounts = Mapping[str, float]

_PODS = "pods"
_ROUNDING = 1e-9
_REPELLING = {"NoSchedule", "NoExecute"}
# These come and go with the node's state: cordoned, not ready, short of memory.
_PASSING_TAINTS = "node.kubernetes.io/"
# Owners of pods that belong to a node: what they take never becomes free; pods of others may end or move.
_OF_NODES = {"DaemonSet", "Node"}
_ALTERNATIVE = "or set preflight to autoscaling if nodes can be added"
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """Why a job could never run on the nodes, and why it may have to wait."""

    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """What counts of a node: the whole object has up to 30 KB, most of it names of images."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    allocatable: Amounts

    @classmethod
    def of(cls, found: Object) -> Node:
        """The node of an API object."""
        amounts = found["status"].get("allocatable") or {}
        return cls(
            name=found["metadata"]["name"],
            labels=found["metadata"].get("labels") or {},
            taints=tuple(found.get("spec", {}).get("taints") or ()),
            allocatable={name: quantity(str(amount)) for name, amount in amounts.items()},
        )


class Usage:
    """What pods take of each node, as sums: all pods now, and for good those that belong to it."""

    def __init__(self) -> None:
        self.for_good: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.now: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, pod: Object) -> None:
        """Count a pod that has not ended."""
        node = pod["spec"].get("nodeName")
        if not node:
            return
        owners = pod["metadata"].get("ownerReferences") or ()
        stays = any(owner.get("controller") and owner["kind"] in _OF_NODES for owner in owners)
        for name, amount in {**requests(pod["spec"]), _PODS: 1.0}.items():
            self.now[node][name] += amount
            if stays:
                self.for_good[node][name] += amount


def check(pod: Object, count: int, nodes: Sequence[Node], usage: Usage | None) -> NodeFindings:
    """Whether `count` pods could run at the same time."""
    # Node affinity is not looked at: a job is never rejected for it.
    asked = {**requests(pod), _PODS: 1.0}
    selected = [node for node in nodes if _is_selected(pod, node)]
    if not selected:
        selector = ", ".join(f"{key}={value}" for key, value in (pod.get("nodeSelector") or {}).items())
        unselected = f"no node has the labels {selector}: see kubectl get nodes --show-labels"
        return NodeFindings(
            (unselected if selector else f"the cluster has no node: add one, {_ALTERNATIVE}",)
        )
    large = [node for node in selected if _slots(node, asked, {}) > 0]
    if not large:
        return NodeFindings(
            ("; ".join(_lacking(asked, selected)) + f": request less per pod, {_ALTERNATIVE}",)
        )
    tolerated = [node for node in large if not _taints(pod, node)]
    if not tolerated:
        return NodeFindings((_tainted(pod, asked, large),))
    usage = usage or Usage()
    ever = sum(_slots(node, asked, usage.for_good[node.name]) for node in tolerated)
    if ever < count:
        problem = (
            f"the nodes can take {ever:g} of the job's {count} pods at the same time, each with "
            f"{_amounts(asked)}; {_free(tolerated, asked, usage.for_good)}: "
            f"request less per pod or fewer pods, {_ALTERNATIVE}"
        )
        return NodeFindings((problem,))
    now = fitting(pod, count, nodes, usage)
    if now < count:
        free = _free(_ready(pod, nodes), asked, usage.now)
        return NodeFindings(remarks=(f"at the moment the nodes can take {now} of {count} pods: {free}",))
    return NodeFindings()


def fitting(pod: Object, count: int, nodes: Sequence[Node], usage: Usage) -> int:
    """How many of `count` pods the nodes can take at this moment."""
    asked = {**requests(pod), _PODS: 1.0}
    free = sum(_slots(node, asked, usage.now[node.name]) for node in _ready(pod, nodes))
    return int(min(count, free))


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


def _ready(pod: Object, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that take such pods now, as far as there is anything free."""
    return [node for node in nodes if _is_selected(pod, node) and not _taints(pod, node, passing=True)]


def _is_selected(pod: Object, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in (pod.get("nodeSelector") or {}).items())


def _allocatable(node: Node, resource: str) -> float:
    return node.allocatable.get(resource, math.inf if resource == _PODS else 0.0)


def _rest(node: Node, asked: Amounts, used: Amounts) -> dict[str, float]:
    """What a node has left of each requested resource, after what is used."""
    return {name: max(0.0, _allocatable(node, name) - used.get(name, 0.0)) for name in asked}


def _slots(node: Node, asked: Amounts, used: Amounts) -> float:
    """How many more such pods fit on a node, after what is used."""
    rest = _rest(node, asked, used)
    times = min(rest[name] / amount for name, amount in asked.items() if amount)
    return times if math.isinf(times) else math.floor(times + _ROUNDING)


def _lacking(asked: Amounts, nodes: Sequence[Node]) -> Iterator[str]:
    """Which resource no node has enough of; together they may be short though each alone is not."""
    largest = {name: max(_allocatable(node, name) for node in nodes) for name in asked}
    short = [name for name in asked if asked[name] > largest[name]]
    for name in short:
        yield (
            f"no node can ever take a pod: {_amount(name, asked[name])} requested, the largest node has "
            f"{_amount(name, largest[name])}"
        )
    if not short:
        yield f"no single node can ever take a pod with {_amounts(asked)} together"


def _taints(pod: Object, node: Node, *, passing: bool = False) -> list[Object]:
    """The node's taints that keep the pod away; with `passing` also those that come and go."""
    return [
        taint
        for taint in node.taints
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


def _tainted(pod: Object, asked: Amounts, nodes: Iterable[Node]) -> str:
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


def _free(nodes: Sequence[Node], asked: Amounts, used: Mapping[str, Amounts]) -> str:
    """What the nodes with the most free capacity have left, of the resource that is short there."""
    left = []
    for node in nodes:
        rest = _rest(node, asked, used.get(node.name, {}))
        short = min((name for name in asked if asked[name]), key=lambda name: rest[name] / asked[name])
        left.append((rest[short] / asked[short], f"{node.name} has {_amount(short, rest[short])} free"))
    best = [text for _, text in sorted(left, reverse=True)[:3]]
    more = f", and {len(left) - len(best)} nodes have no more" if len(left) > len(best) else ""
    return ", ".join(best) + more if best else "no node is ready"


def _amounts(amounts: Amounts) -> str:
    return ", ".join(_amount(name, amount) for name, amount in amounts.items() if name != _PODS)


def _amount(name: str, amount: float) -> str:
    """An amount as text: memory in GiB."""
    if name in {"memory", "ephemeral-storage"}:
        return f"{amount / 2**30:.3g}Gi of {name}"
    return f"{amount:.4g} of {name}"


def quantity(text: str) -> float:
    """A Kubernetes quantity ("500m", "4Gi") as a number."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)([A-Za-z]*)", text)
    if not match or match[2] not in _SUFFIXES:
        raise ValueError(text)
    return float(match[1]) * _SUFFIXES[match[2]]


def shortages(quota: Object, pod: Object, count: int, objects: Amounts) -> Iterator[str]:
    """Each resource of which a quota has too little, with what to do; one with scopes is not judged."""
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):  # it is for some pods only
        return
    hard, used = quota["status"].get("hard") or {}, quota["status"].get("used") or {}
    asked = {**_total(pod, count), **objects}
    for name, amount in asked.items():
        if name not in hard:
            continue
        free = quantity(hard[name]) - quantity(used.get(name, "0"))
        if amount > free:
            left = f"leaves {free:g} of {name} ({used.get(name, '0')} of {hard[name]} in use)"
            yield f"{left}, the job needs {amount:g}: request less, wait, or raise it"


def _total(pod: Object, count: int) -> dict[str, float]:
    """The requests and limits of all pods, by their names in quotas."""
    total: dict[str, float] = {"pods": count, "count/pods": count}
    for name, amount in requests(pod).items():
        total[f"requests.{name}"] = amount * count
        if "/" not in name:
            total[name] = amount * count
    for name, amount in requests(pod, "limits").items():
        total[f"limits.{name}"] = amount * count
    return total
