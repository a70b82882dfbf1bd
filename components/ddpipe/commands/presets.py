"""Presets on the command line: hyperparameters that are given override them; --list-presets shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from ddpipe.commands.results import called_by_engine
from ddpipe.search.winner import best_recipe
from ddpipe.train.presets import PRESETS, Preset, PresetOptions, recipe_of
from ddpipe.train.recipe import Recipe


def given_names(values: Mapping[str, Any]) -> set[str]:
    """The hyperparameters that the user set.

    An engine passes every parameter that has an option of its own: one that has its default was not set.
    """
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


def chosen_recipe(values: Mapping[str, Any]) -> Recipe:
    """The recipe of the preset or the study, with the hyperparameters that the user set."""
    start = PresetOptions.picked(values)
    given = {name: values[name] for name in given_names(values)}
    return recipe_of(start.preset, {**(best_recipe(start.recipe, given) if start.recipe else {}), **given})


def _described(name: str, preset: Preset) -> str:
    values = ", ".join(f"{key}={value}" for key, value in preset.values.items())
    return "\n    ".join([name, preset.help, *filter(None, [preset.measured]), values])


def _list(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo("\n".join(_described(name, preset) for name, preset in PRESETS.items()))
        ctx.exit()


list_presets_option = click.option(
    "--list-presets",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="Show the presets and exit.",
)
