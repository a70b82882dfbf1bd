"""Recipes by name on the command line: what was given overrides the preset; --list-presets shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from ddpipe.commands.results import is_by_engine
from ddpipe.train.presets import PRESETS, Preset, PresetOptions, recipe_of
from ddpipe.train.recipe import Recipe


def chosen_recipe(values: Mapping[str, Any]) -> Recipe:
    """The recipe of the preset, but for the hyperparameters that were given.

    An engine, which takes results as files, gives every parameter that has an option of its own: one that has
    its default was not meant.

    Raises:
        ParameterError: There is no such preset, or values are invalid; all are listed.
    """
    context = click.get_current_context()
    defaults, by_engine = Recipe().to_dict(), is_by_engine()
    given = {
        name: values[name]
        for name, default in defaults.items()
        if name in context.params.get("options", ())
        or (
            context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            and not (by_engine and values[name] == default)
        )
    }
    return recipe_of(PresetOptions.picked(values).preset, given)


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
