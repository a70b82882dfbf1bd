"""A pipeline's form: few fields, whose names sort into groups, for many parameters.

A parameter that is often set has a field of its own, named in its declaration: epochs is `train_epochs`. All
others of its group are given in one object, by their own names: `train_options`, as {"label_smoothing": 0.1}.
Command lines and messages know the parameters' own names only; this is where one becomes the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ddpipe.parameters import Parameter, refuse


def fields(items: Iterable[Parameter], defaults: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The fields of a form for these parameters, in their order, each once.

    Args:
        items: Each has a place in the form.
        defaults: By the parameters' own names, where the declared ones do not suit.
    """
    together: dict[str, dict[str, Parameter]] = {}
    for item in items:
        together.setdefault(item.form, {}).setdefault(item.name, item)
    return tuple(_field(name, list(members.values()), defaults) for name, members in together.items())


def objects(items: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The fields that hold several of these parameters by name."""
    return fields([item for item in items if item.form and not item.alone], {})


def _field(name: str, members: list[Parameter], defaults: Mapping[str, Any]) -> Parameter:
    first = members[0]
    if first.alone:
        return replace(first, name=name, default=defaults.get(first.name, first.default))
    names = [item.name for item in members]
    return Parameter(
        name=name,
        kind=dict,
        default={name: defaults[name] for name in names if name in defaults},
        help=f"Further options by name, as a JSON object: {', '.join(names)}.",
        form=name,
    )


def filled(items: Iterable[Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a form, from values by the parameters' own names.

    Raises:
        ParameterError: Names that are in no field.
    """
    places = {item.name: item for item in items}
    refuse("the form cannot be filled in", [unknown(name, places) for name in values if name not in places])
    form: dict[str, Any] = {}
    for name, value in values.items():
        item = places[name]
        if item.alone:
            form[item.form] = value
        else:
            form.setdefault(item.form, {})[name] = value
    return form


def opened(name: str, value: object, items: Mapping[str, Parameter]) -> tuple[dict[str, Any], list[str]]:
    """What an object field holds, by the parameters' own names; and what is wrong with its names.

    Args:
        name: Of the field.
        value: What was given there.
        items: All parameters, by name.
    """
    if not isinstance(value, dict):
        return {}, [f"{name} is {value!r}, not an object of names and values"]
    members = [item.name for item in items.values() if item.form == name]
    elsewhere = {item.name: item.form for item in items.values() if item.form != name and item.form}
    wrong = [
        f"{key} does not belong in {name}: it is given as {elsewhere[key]}"
        if key in elsewhere
        else unknown(key, members)
        for key in value
        if key not in members
    ]
    return {key: inside for key, inside in value.items() if key in members}, wrong


def unknown(name: str, names: Iterable[str]) -> str:
    """That there is no parameter of this name, and which one may have been meant."""
    close = get_close_matches(name, list(names), n=1)
    return f"{name!r} is no parameter here" + (f"; is it {close[0]}?" if close else "")
