"""Settings of a task in KFP 2.15 or later as options of the job that the task launches. Pure functions.

A component can receive these settings instead of having them applied to its own pod: a JSON object with
fragments of a pod's spec, `TaskConfig` in KFP. Resources, node selector and tolerations become options of the
job; the rest becomes part of its patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddpipe.jobs import CONTAINER, LOCAL
from ddpipe.jobs.pods import volume_name
from ddpipe.kube.patch import merged
from ddpipe.parameters import refuse

_OBJECT, _LIST = "an object", "a list of objects"
_FIELDS = {
    "resources": _OBJECT,
    "env": _LIST,
    "affinity": _OBJECT,
    "tolerations": _LIST,
    "nodeSelector": _OBJECT,
    "volumes": _LIST,
    "volumeMounts": _LIST,
}
_TYPED = {"cpu", "memory"}
"""Resources that are options of their own."""

Settings = Mapping[str, Any]


def with_task_config(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """A job's options with the task's settings, which override them."""
    refuse("the settings of the task cannot be applied to its job", _malformed(settings))
    found = {name: _named(name, value) for name, value in settings.items() if value}
    if not found:
        return dict(values)
    refuse("the settings of the task cannot be applied to its job", _unfit(found, values))
    return {
        **values,
        **_amounts(_limits(found)),
        "node_selector": {**values["node_selector"], **found.get("nodeSelector", {})},
        "tolerations": [*values["tolerations"], *found.get("tolerations", ())],
        "patch": merged(values["patch"], _patch(found)),
    }


def _malformed(settings: Settings) -> Iterator[str]:
    for name, value in settings.items():
        if name not in _FIELDS:
            yield f"{name!r} is not a field of a TaskConfig; choose from {', '.join(_FIELDS)}"
        elif value and not _is(_FIELDS[name], value):
            yield f"{name} is {value!r}, not {_FIELDS[name]}"


def _is(kind: str, value: object) -> bool:
    if kind == _OBJECT:
        return isinstance(value, dict)
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _named(field: str, value: Any) -> Any:  # noqa: ANN401 - a field's own type
    """KFP names a volume after its object, which may not be a valid name for a volume."""
    if field not in {"volumes", "volumeMounts"}:
        return value
    return [{**item, "name": volume_name(str(item.get("name", "")))} for item in value]


def _unfit(found: Settings, values: Mapping[str, Any]) -> Iterator[str]:
    if values["backend"] == LOCAL:
        yield f"backend is {LOCAL}, so there is no job; choose another, or the component without a TaskConfig"
    devices = _devices(_limits(found))
    if len(devices) > 1:
        yield f"resources name {len(devices)} kinds of accelerator: {', '.join(devices)}"
    for name, amount in devices.items():
        if not str(amount).isdecimal():
            yield f"resources: {name} is {amount!r}, not a whole number"


def _limits(found: Settings) -> dict[str, str]:
    """The limits of a pod, or its requests where it has no limit."""
    resources = found.get("resources", {})
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _devices(limits: Mapping[str, str]) -> dict[str, str]:
    return {name: amount for name, amount in limits.items() if name not in _TYPED}


def _amounts(limits: Mapping[str, str]) -> dict[str, Any]:
    typed = {name: amount for name, amount in limits.items() if name in _TYPED}
    devices = [{"gpu_resource": name, "gpus": int(amount)} for name, amount in _devices(limits).items()]
    return {**typed, **(devices[0] if devices else {})}


def _patch(found: Settings) -> dict[str, Any]:
    """The patch for settings without an option."""
    smaller = _smaller_requests(found)
    container = {
        **({"resources": {"requests": smaller}} if smaller else {}),
        **{name: found[name] for name in ("env", "volumeMounts") if name in found},
    }
    return {
        "spec": {
            **{name: found[name] for name in ("affinity", "volumes") if name in found},
            **({"containers": [{"name": CONTAINER, **container}]} if container else {}),
        }
    }


def _smaller_requests(found: Settings) -> dict[str, str]:
    """Requests below the limits; by default, a job's requests equal its limits."""
    requests, limits = found.get("resources", {}).get("requests") or {}, _limits(found)
    return {name: amount for name, amount in requests.items() if amount != limits[name]}
