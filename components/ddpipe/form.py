"""A pipeline's form: many parameters in few fields, whose names sort them into groups.

A parameter that is often set has its own field, named in its declaration: `train_epochs` for epochs. The
others of its group share an object field, by their own names: `train_options` = {"momentum": 0.5}.
Steps know only the parameters' own names; this module translates between names and fields.

A message names a parameter in backticks, as it is declared. The entry point that shows the message spells it:

    message                  `learning_rate` is -1
    command line             --learning-rate is -1
    form of a pipeline       train_learning_rate is -1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ddpipe.parameters import Parameter, is_declared

# From a parameter's name, as it is declared, to how the user writes it; `str` leaves it as it is.
Spelling = Callable[[str], str]


def fields(items: Iterable[Parameter], defaults: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The fields of a form for these parameters, in their order, each once."""
    together: dict[str, dict[str, Parameter]] = {}
    for item in items:
        together.setdefault(item.form, {}).setdefault(item.name, item)
    return tuple(_field(name, list(members.values()), defaults) for name, members in together.items())


def objects(items: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The object fields, each of which holds several of these parameters by name."""
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


def opened(values: Mapping[str, Any], items: Collection[Parameter]) -> tuple[dict[str, Any], list[str]]:
    """Values by the parameters' own names, those in object fields too, and what is wrong with the names."""
    fields = {item.name: item.form for item in items if item.form and not item.alone}
    elsewhere = {item.name: item.form for item in items if item.form}
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for field, value in values.items():
        if field not in fields.values():
            found[field] = value
        elif not isinstance(value, dict):
            wrong.append(f"{field} is {value!r}, not an object of names and values")
        else:
            found |= {name: inside for name, inside in value.items() if fields.get(name) == field}
            wrong += [
                f"{name} does not belong in {field}, but in {elsewhere[name]}"
                if name in elsewhere
                else unknown(name, [member for member in fields if fields[member] == field])
                for name in value
                if fields.get(name) != field
            ]
    return found, wrong


def unknown(name: str, names: Iterable[str]) -> str:
    """A message: there is no such parameter, but perhaps one with a similar name, or with these initials."""
    names = list(names)
    initials = [one for one in names if "".join(word[:1] for word in one.split("_")) == name]
    close = initials or get_close_matches(name, names, n=1)
    return f"{name!r} is not a parameter here" + (f"; did you mean {close[0]}?" if close else "")


def as_option(name: str) -> str:
    """An option of the command line: `--learning-rate`."""
    return f"--{name.replace('_', '-')}"


def as_field(items: Iterable[Parameter]) -> Spelling:
    """How the user of a form writes a parameter: as its field, or by its own name inside an object field."""
    fields_of = {item.name: item.form for item in items if item.alone}
    return lambda name: fields_of.get(name, name)


def spelled(text: str, spelling: Spelling) -> str:
    """A message with its parameters as the user writes them."""
    return re.sub(r"`(\w+)`", lambda name: spelling(name[1]) if is_declared(name[1]) else name[0], text)
