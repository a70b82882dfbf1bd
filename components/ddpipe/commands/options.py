"""Declared parameters as options of a command.

An option is its parameter's name with hyphens. A list is given item by item with a repeated option, or as one
JSON list; an object as repeated NAME=VALUE, as one JSON object, or as @FILE with such an object. Engines pass
each parameter as a single argument, people write items one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ddpipe.commands import SectionedOption
from ddpipe.commands.results import called_by_engine
from ddpipe.form import as_option
from ddpipe.parameters import AUTO, OneOf, Parameter, Parameters, declared
from ddpipe.train.recipe import Recipe

T = TypeVar("T", bound=Callable[..., object])
P = TypeVar("P", bound=Parameters)

FEW = 6  # up to this many choices are shown in place of TEXT


def options(
    *groups: type[Parameters], without: Collection[str] = (), brief: bool = False
) -> Callable[[T], T]:
    """An option for each parameter of these groups, in their order."""
    chosen: dict[str, tuple[str, Parameter]] = {}
    for group in groups:
        for item in declared(group):
            if item.name not in without:
                chosen.setdefault(item.name, (group.heading, item))

    def decorate(command: T) -> T:
        for heading, item in reversed(chosen.values()):
            command = declared_option(item, heading, common=item.common or not brief)(command)
        return command

    return decorate


def taken(group: type[P], given: dict[str, Any]) -> P:
    """A group of parameters, removed from those of a command."""
    found = group.from_run_values(given).validated()
    for item in declared(group):
        del given[item.name]
    return found


def parsed(item: Parameter, text: str) -> Any:
    """A parameter's value from text; if it cannot be parsed the text itself, which validation rejects."""
    try:
        return _MANY[item.kind][0]((text,), item) if item.kind in _MANY else item.read(text)
    except click.BadParameter:
        return text


def declared_option(item: Parameter, heading: str, *, common: bool = True) -> Callable[[T], T]:
    """One parameter as an option."""
    default, many = item.default, _MANY.get(item.kind)

    def read(_ctx: click.Context, _option: click.Parameter, given: Any) -> object:
        if not many:
            return item.read(given)
        return many[0](given, item) if given else default

    if many:
        metavar, settings = many[1], dict[str, Any](multiple=True, show_default=False)
    else:
        names = list(filter(None, item.allowed.names)) if type(item.allowed) is OneOf else []
        metavar = f"NUMBER|{AUTO}" if item.may_be_auto else _METAVARS[item.kind]
        metavar = "|".join(names) if 0 < len(names) <= FEW else metavar
        # Help that says what 0 means says that it is the default, too.
        shown = default not in {"", None} and not (default == 0 and " 0 " in item.help)
        settings = {"default": default, "show_default": shown or item.kind is bool}
        if item.kind is bool:  # with or without a value: --verify, --verify false
            settings |= {"is_flag": False, "flag_value": "true"}
    return click.option(
        as_option(item.name),
        cls=SectionedOption,
        heading=heading,
        common=common,
        help=f"{item.help}  [required]" if item.required else item.help,
        # As text: its value is checked with all others, once.
        type=str,
        callback=read,
        metavar=metavar,
        **settings,
    )


def _listed(given: tuple[str, ...], item: Parameter) -> list[Any]:
    values: list[Any] = []
    for text in given:
        parsed = _json(text) if text.startswith(("[", "@")) or item.items is not str else text
        values += parsed if isinstance(parsed, list) else [parsed]
    return values


def _mapped(given: tuple[str, ...], item: Parameter) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in given:
        if text.startswith(("{", "@")):
            parsed = _json(text)
            if not isinstance(parsed, dict):
                raise click.BadParameter("the text in braces is not a JSON object")
            values |= parsed
            continue
        name, separator, value = text.partition("=")
        if not (name and separator):
            # It is not shown, as it may be a password.
            raise click.BadParameter("an item is neither NAME=VALUE nor a JSON object")
        values[name] = value if item.items is str else _json(value)
    return values


def _json(text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error


_MANY: dict[type, tuple[Callable[..., Any], str]] = {
    list: (_listed, "ITEM ..."),
    dict: (_mapped, "NAME=VALUE ..."),
}
_METAVARS = {str: "TEXT", int: "INTEGER", float: "FLOAT", bool: "BOOLEAN"}


def given_names(values: Mapping[str, Any]) -> set[str]:
    """The hyperparameters that the user set."""
    # An engine passes every parameter that has an option of its own: one that has its default was not set.
    context = click.get_current_context()
    defaults, by_engine = Recipe().to_dict(), called_by_engine()
    return {
        name
        for name, default in defaults.items()
        if name in context.params.get("options", ())
        or (
            context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            and not (by_engine and values[name] == default)
        )
    }
