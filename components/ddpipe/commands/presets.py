"""`--list-presets`: the recipes by name, with what each changes."""

from __future__ import annotations

import click

from ddpipe.train.presets import PRESETS, Preset


def _told(name: str, preset: Preset) -> str:
    values = ", ".join(f"{key}={value}" for key, value in preset.values.items())
    return "\n    ".join([name, preset.help, *filter(None, [preset.measured]), values])


def _list(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo("\n".join(_told(name, preset) for name, preset in PRESETS.items()))
        ctx.exit()


list_presets_option = click.option(
    "--list-presets",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="Show the presets and exit.",
)
