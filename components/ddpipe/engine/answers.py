"""What a pipeline server's answer must look like, before anything uses it.

The generated client accepts any JSON: a text where a list belongs becomes a list of characters, a
missing ID becomes None, and the mistake shows much later, as a traceback. Here every answer is compared with
the types of the API's description. Fields that the description lacks are ignored: newer servers have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import kfp_server_api

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str, int, float),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "V2beta1Run": ("run_id", "display_name"),
    "V2beta1Pipeline": ("pipeline_id", "display_name"),
    "V2beta1PipelineVersion": ("pipeline_id", "pipeline_version_id", "display_name"),
    "V2beta1Experiment": ("experiment_id", "display_name"),
    "V2beta1RecurringRun": ("recurring_run_id", "display_name", "trigger"),
    "V2beta1PipelineTaskDetail": ("display_name",),
}
"""Fields without which nothing can be done with an object."""


class NotAsDescribed(ValueError):
    """An answer that does not fit the API's description; the message says where."""


def parsed(content: bytes) -> dict[str, Any]:
    """The JSON object of an answer."""
    try:
        found: dict[str, Any] = _of_type(json.loads(content), dict, "the answer")
    except (ValueError, RecursionError) as error:
        raise NotAsDescribed(f"the answer is not a JSON object: {error}") from error
    return found


def check(value: Any, kind: str, where: str = "the answer") -> None:  # noqa: ANN401 - any JSON
    """Compare a value with its described type."""
    if value is None or kind == "object":
        return
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        for number, item in enumerate(_of_type(value, list, where)):
            check(item, listed[1], f"{where}[{number}]")
    elif mapped := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for name, item in _of_type(value, dict, where).items():
            check(item, mapped[1], f"{where}.{name}")
    elif kind == "datetime":
        _check_time(value, where)
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise NotAsDescribed(f"{where} is {_type(value)}, not {kind}")
    else:
        _check_model(value, kind, where)


def _check_model(value: Any, kind: str, where: str) -> None:  # noqa: ANN401 - any JSON
    model = getattr(kfp_server_api, kind)
    if not model.openapi_types:  # an enumeration, to which a newer server may have added a word
        _of_type(value, str, where)
        return
    _of_type(value, dict, where)
    for name in _REQUIRED.get(kind, ()):
        if not value.get(name):
            raise NotAsDescribed(f"{where} has no {name}")
    for name, inner in model.openapi_types.items():
        described = model.attribute_map[name]
        check(value.get(described), inner, f"{where}.{described}")


def _check_time(value: Any, where: str) -> None:  # noqa: ANN401 - any JSON
    try:
        moment = datetime.fromisoformat(_of_type(value, str, where))
    except ValueError as error:
        raise NotAsDescribed(f"{where} is not a time") from error
    if moment.tzinfo is None:
        raise NotAsDescribed(f"{where} is a time without a time zone")


def _of_type(value: Any, kind: type, where: str) -> Any:  # noqa: ANN401 - any JSON
    if not isinstance(value, kind):
        raise NotAsDescribed(f"{where} is {_type(value)}, not {kind.__name__}")
    return value


def _type(value: object) -> str:
    return type(value).__name__
