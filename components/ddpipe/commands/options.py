"""Declared parameters as options of a command.

A name is spelled with hyphens. A list takes its option several times, or one JSON list; an object NAME=VALUE
several times, or one JSON object, or @ and the path of a file that holds one: engines give each parameter as
one argument, people write it piece by piece.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ddpipe.parameters import OneOf, Parameter, Parameters, declared

T = TypeVar("T", bound=Callable[..., object])
P = TypeVar("P", bound=Parameters)

FEW = 6
"""Names that are shown in place of TEXT."""


def options(
    *groups: type[Parameters],
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Callable[[T], T]:
    """An option for each parameter of these groups, in their order.

    Args:
        groups: Where two have a parameter of one name, the first counts.
        only: Names of those that the command has; empty: all.
        without: Names of those that it has not.
    """
    chosen: dict[str, tuple[str, Parameter]] = {}
    for group in groups:
        for item in declared(group):
            if item.name not in without and (not only or item.name in only):
                chosen.setdefault(item.name, (group.heading, item))

    def decorate(command: T) -> T:
        for heading, item in reversed(chosen.values()):
            command = as_option(item, heading)(command)
        return command

    return decorate


def taken(group: type[P], given: dict[str, Any]) -> P:
    """A group's own parameters, taken out of a command's.

    Raises:
        ParameterError: Invalid values; all of them are listed.
    """
    found = group.picked(given)
    for item in declared(group):
        del given[item.name]
    return found


class _SectionedOption(click.Option):
    """An option that knows the heading that it stands under."""

    def __init__(self, *names: Any, heading: str, **settings: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*names, **settings)
        self.heading = heading


class SectionedCommand(click.Command):
    """A command whose help lists its options below their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, each in the order of its options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for item in self.get_params(ctx):
            if isinstance(item, click.Option) and (record := item.get_help_record(ctx)):
                sections.setdefault(getattr(item, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def parsed(item: Parameter, text: str) -> Any:  # noqa: ANN401 - of the parameter's own type
    """A parameter's value from text; the text itself where it is none, which the declaration then refuses."""
    try:
        match item.kind:
            case builtins.str:
                return text
            case builtins.bool:
                return click.BOOL.convert(text, None, None)
            case builtins.list:
                return _listed((text,), item)
            case builtins.dict:
                return _mapped((text,), item)
            case kind:
                return kind(text)
    except (ValueError, click.BadParameter):
        return text


def as_option(item: Parameter, heading: str) -> Callable[[T], T]:
    """One parameter as an option, below a heading."""
    name, default = f"--{item.name.replace('_', '-')}", item.default
    shared: dict[str, Any] = {
        "cls": _SectionedOption,
        "heading": heading,
        "help": item.help,
        "required": item.required,
    }
    if item.kind in {list, dict}:
        return _several(name, item, default, shared)
    if item.kind is bool:
        # A flag for people, a value for engines: --verify, --verify false.
        return click.option(name, type=bool, is_flag=False, flag_value=True, default=default, **shared)
    names = list(filter(None, item.allowed.names)) if isinstance(item.allowed, OneOf) else []
    metavar = "|".join(names) if 0 < len(names) <= FEW else None
    return click.option(
        name,
        type=item.kind,
        default=default,
        metavar=metavar,
        show_default=default not in {"", None},
        **shared,
    )


def _several(name: str, item: Parameter, default: object, shared: Mapping[str, Any]) -> Callable[[T], T]:
    parse, one = (_listed, "ITEM") if item.kind is list else (_mapped, "NAME=VALUE")

    def read(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> object:
        return parse(given, item) if given else default

    return click.option(
        name, multiple=True, callback=read, metavar=f"{one} ...", show_default=False, **shared
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
                raise click.BadParameter(f"{text!r} is no JSON object")
            values |= parsed
            continue
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is neither NAME=VALUE nor a JSON object")
        values[name] = value if item.items is str else _json(value)
    return values


def _json(text: str) -> Any:  # noqa: ANN401 - whatever it holds
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error
