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

from ddpipe.commands.results import called_by_engine
from ddpipe.form import as_option
from ddpipe.parameters import AUTO, OneOf, Parameter, Parameters, declared
from ddpipe.train.recipe import Recipe

T = TypeVar("T", bound=Callable[..., object])
P = TypeVar("P", bound=Parameters)

FEW = 6  # up to this many choices are shown in place of TEXT
ENGINES = "For pipeline engines"  # the heading of options that people do not need
_HELP_ALL = "ddpipe.help_all"  # key of the context's `meta`: whether --help-all is given


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
    found = group.from_run_values(given)
    for item in declared(group):
        del given[item.name]
    return found


class SectionedOption(click.Option):
    """An option with a heading in the help text; only --help-all shows one that is not common."""

    def __init__(self, *names: Any, heading: str, common: bool = True, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.heading = heading
        self.common = common


def engine_option(*names: str, **settings: Any) -> Callable[[T], T]:
    """An option that only pipeline engines use."""
    return click.option(*names, cls=SectionedOption, heading=ENGINES, common=False, **settings)


class SectionedCommand(click.Command):
    """A command whose help groups its options by heading, the common ones first.

    --help shows common options only; --help-all, which exists if there are others, shows all of them.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --help-all if there is more to show."""
        found = super().get_params(ctx)
        return found if all(map(_is_common, found)) else [*found, _help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, each in the order of its options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        given = self.get_params(ctx)
        shown = [item for item in given if ctx.meta.get(_HELP_ALL) or _is_common(item)]
        for item in shown:
            if isinstance(item, click.Option) and (record := item.get_help_record(ctx)):
                sections.setdefault(getattr(item, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        if more := len(given) - len(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{more} more options: {ctx.command_path} --help-all")


def _is_common(item: click.Parameter) -> bool:
    return getattr(item, "common", True)


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_help_all = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)


def parsed(item: Parameter, text: str) -> Any:
    """A parameter's value from text; if it cannot be parsed the text itself, which validation rejects."""
    try:
        if item.kind in {list, dict}:
            return (_listed if item.kind is list else _mapped)((text,), item)
        return click.types.convert_type(item.kind).convert(text, None, None)
    except click.BadParameter:
        return text


def declared_option(item: Parameter, heading: str, *, common: bool = True) -> Callable[[T], T]:
    """One parameter as an option."""
    name, default = as_option(item.name), item.default
    shared: dict[str, Any] = {
        "cls": SectionedOption,
        "heading": heading,
        "common": common,
        "help": f"{item.help}  [required]" if item.required else item.help,
    }
    if item.kind in {list, dict}:
        parse, one = (_listed, "ITEM") if item.kind is list else (_mapped, "NAME=VALUE")

        def read(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> object:
            return parse(given, item) if given else default

        return click.option(
            name, multiple=True, callback=read, metavar=f"{one} ...", show_default=False, **shared
        )
    if item.kind is bool:
        # With or without a value: --verify, --verify false.
        return click.option(name, type=bool, is_flag=False, flag_value=True, default=default, **shared)
    names = list(filter(None, item.allowed.names)) if type(item.allowed) is OneOf else []
    metavar = "|".join(names) if 0 < len(names) <= FEW else None
    if item.may_be_auto:
        metavar = f"NUMBER|{AUTO}"
    return click.option(
        name,
        type=_NumberOrAuto(item.kind) if item.may_be_auto else item.kind,
        default=default,
        metavar=metavar,
        # Help that says what 0 means says that it is the default, too.
        show_default=default not in {"", None} and not (default == 0 and " 0 " in item.help),
        **shared,
    )


class _NumberOrAuto(click.ParamType[float | str]):
    """A number, or `AUTO`."""

    def __init__(self, kind: type) -> None:
        self._number = click.types.convert_type(kind)
        self.name = f"{self._number.name}|{AUTO}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that a text says."""
        return value if value == AUTO else self._number.convert(value, param, ctx)


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
