"""Dataclasses from JSON that is not trusted: every field has the declared type, or the file is rejected.

typed(Estimate, {"value": 0.5, "low": None, "high": None})     an Estimate
typed(Estimate, {"value": "0.5"})                               ValueError: value is '0.5', not float
"""

from __future__ import annotations

import builtins
import functools
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(kind: type[T], values: object, where: str = "") -> T:
    """A frozen dataclass from an object of JSON, including nested dataclasses, tuples and mappings."""
    if not isinstance(values, Mapping):
        name = where.removesuffix(".") or "it"
        raise ValueError(f"{name} is {_shown(values)}, not an object")  # noqa: TRY004 - a file's fault
    hints, declared = _hints(kind), fields(kind)  # type: ignore[arg-type]
    unknown = sorted(map(str, values.keys() - {item.name for item in declared}))
    if unknown:
        raise ValueError(f"{where}{unknown[0]} is not known")
    required = [item.name for item in declared if item.default is item.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{where}{missing[0]} is missing")
    return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()})


_hints = functools.cache(get_type_hints)


def _value(kind: Any, value: object, where: str) -> Any:  # noqa: ANN401 - any type, and a value of it
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            nested = isinstance(kind, type) and is_dataclass(kind)
            return typed(kind, value, f"{where}.") if nested else _scalar(kind, value, where)
        case types.UnionType if value is None and NoneType in arguments:
            return None
        case types.UnionType:
            (kind,) = (one for one in arguments if one is not NoneType)
            return _value(kind, value, where)
        case builtins.tuple:
            return _tuple(arguments, value, where)
        case builtins.list:
            return list(_tuple((*arguments, ...), value, where))
        case _:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{where} is {_shown(value)}, not an object")
            return {key: _value(arguments[1], one, f"{where}.{key}") for key, one in value.items()}


def _scalar(kind: Any, value: object, where: str) -> Any:  # noqa: ANN401 - as above
    if kind is float:
        fits = type(value) in {int, float} and math.isfinite(value)  # type: ignore[arg-type]
    else:
        fits = kind is Any or type(value) is kind  # True is no integer here
    if not fits:
        raise ValueError(f"{where} is {_shown(value)}, not {kind.__name__}")
    return value


def _tuple(arguments: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where} is {_shown(value)}, not a list")  # noqa: TRY004 - a file's fault
    kinds = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
    if len(kinds) != len(value):
        raise ValueError(f"{where} has {len(value)} values, not {len(kinds)}")
    return tuple(
        _value(kind, one, f"{where}[{place}]")
        for place, (kind, one) in enumerate(zip(kinds, value, strict=True))
    )


def _shown(value: object) -> str:
    """A value in a message, however large it is."""
    return repr(value)[:80]
