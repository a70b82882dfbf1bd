"""The commands of the command line, and how all of them print a result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence

import click

from ddpipe.errors import visible

JSON = "json"  # key of the context's `meta`: whether --json is given
ARGUMENTS = "arguments"  # key of the context's `meta`: what stands after `ddpipe` on the command line
RESULT = "result"  # key of the context's `meta`: the text of the result that was printed
# Key of the context's `meta`: how the caller spells a parameter; without it, as an option.
SPELLING = "spelling"


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
