"""The commands of the CLI, and what they share: how a result is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from ddpipe.storage import split_uri, write_uri

T = TypeVar("T", bound=Callable[..., object] | click.Command)


def _note_json(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    ctx.meta["json"] = wanted


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_note_json,
    help="Print one JSON object.",
)


def write_option(*names: str) -> Callable[[T], T]:
    """For engines that take a step's results as files; `names` are those that a command has."""

    def note(ctx: click.Context, _option: click.Parameter, wanted: tuple[tuple[str, Path], ...]) -> None:
        for _, path in wanted:
            store, _ = split_uri(str(path))
            store.check_writable()
        ctx.meta["write"] = wanted

    return click.option(
        "--write",
        type=(click.Choice(names), click.Path(dir_okay=False, path_type=Path)),
        multiple=True,
        expose_value=False,
        callback=note,
        metavar="NAME PATH",
        help=f"Write one result to a file; repeatable. NAME is one of: {', '.join(names)}.",
    )


def tell(facts: Mapping[str, object], text: str, **documents: Callable[[], str]) -> None:
    """The result on standard output: one JSON object for scripts, or a few lines for people.

    Args:
        facts: The result.
        text: The same for people.
        documents: Further results that are made only if --write asks for them.
    """
    meta = click.get_current_context().meta
    for name, path in meta.get("write", ()):
        content = documents[name]() if name in documents else str(facts[name])
        write_uri(str(path), content.encode())
    click.echo(json.dumps(facts) if meta.get("json") else text)
