"""Whether a ResourceQuota leaves enough for a job; quotas with other scopes than the job's do not count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpipe.kube.capacity import requests
from ddpipe.kube.quantities import quantity
from ddpipe.kube.resources import Object


def shortages(quota: Object, pod: Object, count: int, objects: Mapping[str, float]) -> Iterator[str]:
    """Each resource of which a quota has too little, with what to do."""
    if not _applies(quota["spec"], pod):
        return
    hard, used = quota["status"].get("hard") or {}, quota["status"].get("used") or {}
    asked = _total(pod, count)
    if not _scopes(quota["spec"]):
        asked |= objects
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


def _scopes(spec: Object) -> list[Object]:
    """The scopes as expressions; they can be written in two ways."""
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    return plain + list((spec.get("scopeSelector") or {}).get("matchExpressions") or ())


def _applies(spec: Object, pod: Object) -> bool:
    return all(_matches(scope, pod) for scope in _scopes(spec))


def _matches(scope: Object, pod: Object) -> bool:
    match scope["scopeName"]:
        case "Terminating":
            return "activeDeadlineSeconds" in pod
        case "NotTerminating":
            return "activeDeadlineSeconds" not in pod
        case "BestEffort":
            return not requests(pod)
        case "NotBestEffort":
            return bool(requests(pod))
        case "PriorityClass":
            return _has_class(scope, pod.get("priorityClassName", ""))
        case _:
            # CrossNamespacePodAffinity, and scopes of later versions: an unknown one rejects no job.
            return False


def _has_class(scope: Object, name: str) -> bool:
    values = scope.get("values") or ()
    match scope["operator"]:
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "DoesNotExist":
            return not name
        case _:
            return bool(name)
