"""The commands of the command line, one file each, and what they share: how a result is told."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

JSON = "json"
"""Key of the context's `meta`: whether scripts read along."""


def _note_json(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    ctx.meta[JSON] = wanted


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_note_json,
    help="Print one JSON object.",
)


def tell(facts: Mapping[str, object], text: str) -> None:
    """The result on standard output: one JSON object for scripts, or a few lines for people."""
    click.echo(json.dumps(facts) if click.get_current_context().meta.get(JSON) else text)
