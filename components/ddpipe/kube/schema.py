"""Which fields of a value the schema of a CRD knows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddpipe.kube.resources import Object


def within(schema: Object, *names: str) -> Object:
    """The schema of a field of a field; of a list, that of its items."""
    for name in names:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    return schema


def fitted(value: Any, schema: Object) -> Any:  # noqa: ANN401 - any JSON value
    """`value` without the fields that `schema` does not know."""
    if isinstance(value, Mapping) and "properties" in schema:
        known = schema["properties"]
        return {name: fitted(item, known[name]) for name, item in value.items() if name in known}
    if isinstance(value, list) and "items" in schema:
        return [fitted(item, schema["items"]) for item in value]
    return value


def misfits(value: Any, schema: Object, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The fields of `value` that `schema` does not know, as path and value; items of lists by their name."""
    if isinstance(value, Mapping) and "properties" in schema:
        known = schema["properties"]
        for name, item in value.items():
            place = f"{path}.{name}" if path else name
            if name in known:
                yield from misfits(item, known[name], place)
            else:
                yield place, item
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            yield from misfits(item, schema["items"], f"{path}.{name}")
