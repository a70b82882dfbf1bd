"""Strategic merge patch, for the fields of a pod template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpipe.errors import ParameterError

# The field that identifies an item of a list, by the list's own name; other lists are replaced as a whole.
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


_WHOLE = {"env"}
"""Lists whose items are replaced as a whole: a variable must not have its old value and a new source."""


def merged(base: Any, patch: Any, field: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """`base` with `patch` applied: objects merge, null deletes, lists of named items merge by name."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        return _merged_objects(base, patch)
    if isinstance(base, list) and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(base, patch, field)
    return patch


def _merged_objects(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in base.items() if name not in patch}
    changed = {
        name: merged(base.get(name), value, name) for name, value in patch.items() if value is not None
    }
    return {**kept, **changed}


def _merged_lists(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    key = MERGE_KEYS[field]
    changes = {_named(item, key, field): item for item in patch}
    names = {item[key] for item in base}
    kept = [_changed(item, changes.get(item[key], {}), field) for item in base]
    added = [item for name, item in changes.items() if name not in names]
    deleted = {name for name, item in changes.items() if item.get("$patch") == "delete"}
    return [item for item in [*kept, *added] if item[key] not in deleted]


def _changed(item: Any, change: Mapping[str, Any], field: str) -> Any:  # noqa: ANN401
    return change if change and field in _WHOLE else merged(item, change)


def _named(item: Any, key: str, field: str) -> Any:  # noqa: ANN401
    if isinstance(item, Mapping) and key in item:
        return item[key]
    raise ParameterError(
        what="the patch cannot be applied",
        which=f"{field} of the pod template",
        seen=f"{item!r} has no {key}, so it is unclear which item it changes",
        do=f"Give each item of {field} its {key}.",
    )
