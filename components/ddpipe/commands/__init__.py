"""The commands of the command line, and how all of them print their help and a result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ddpipe.errors import visible

JSON = "json"  # key of the context's `meta`: whether --json is given
ARGUMENTS = "arguments"  # key of the context's `meta`: what stands after `ddpipe` on the command line
RESULT = "result"  # key of the context's `meta`: the text of the result that was printed
# Key of the context's `meta`: how the caller spells a parameter; without it, as an option.
SPELLING = "spelling"


ENGINES = "For pipeline engines"  # the heading of options that people do not need
_HELP_ALL = "ddpipe.help_all"  # key of the context's `meta`: whether --help-all is given
T = TypeVar("T", bound=Callable[..., object])


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


def _remember(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    ctx.meta[JSON] = value


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_remember,
    help="Print one JSON object.",
)


def print_result(facts: Mapping[str, object], text: str) -> None:
    """Print the result on standard output."""
    click.get_current_context().meta[RESULT] = text
    say(json.dumps(facts) if click.get_current_context().meta.get(JSON) else text)


def same_command() -> str:
    """The command as it was given, to be pasted."""
    return shlex.join(["ddpipe", *click.get_current_context().meta.get(ARGUMENTS, ())])


def say(text: str, *, err: bool = False) -> None:
    """Print a line, of which some may come from elsewhere."""
    click.echo(visible(text), err=err)


store_option = click.option(
    "--store",
    default="store",
    help="URI of the store of datasets and models, a folder or s3://bucket/prefix.",
)

runs_option = click.option("--runs", default="runs", help="URI of the folder that holds all runs.")


def in_columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table under its head; nothing for no rows."""
    lines = [head, *rows]
    if len(lines) == 1:
        return ""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


LOCAL, KATIB = "local", "katib"

on_option = click.option(
    "--on",
    type=click.Choice([LOCAL, KATIB]),
    default=LOCAL,
    expose_value=False,
    help="Where trials run: on this machine, or as jobs of Katib, whose options --on katib --help lists.",
)
