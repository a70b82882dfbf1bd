"""Strategic merge patch, as far as a pod template needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What identifies an item of a list, by the list's field; all other lists are replaced whole.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def merged(base: Any, patch: Any, field: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """`base` changed by `patch`: objects merge, null deletes, lists of named things merge by name."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        return _merged_objects(base, patch)
    if isinstance(base, list) and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(base, patch, MERGE_KEYS[field])
    return patch


def _merged_objects(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in base.items() if name not in patch}
    changed = {
        name: merged(base.get(name), value, name) for name, value in patch.items() if value is not None
    }
    return {**kept, **changed}


def _merged_lists(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    changes = {item[key]: item for item in patch}
    items = [merged(item, changes.pop(item[key])) if item[key] in changes else item for item in base]
    return [item for item in [*items, *changes.values()] if item.get("$patch") != "delete"]
