"""The space of a search in Katib's terms, and the recipe of a trial as a template for its values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ddpipe.errors import OutputMissing
from ddpipe.parameters import declared, refuse
from ddpipe.search import Sampler
from ddpipe.search.space import WHAT, Choice, Dimension, Range, Space, parsed_value, recipe_with
from ddpipe.train.recipe import Recipe

_CMAES_RANGES = 2

_PLAIN = re.compile(r"[\w.:/@+-]*")


def parameters(space: Space) -> list[dict[str, Any]]:
    """What varies, as an Experiment has it."""
    return [{"name": item.name, **_feasible(item)} for item in space.dimensions]


def check(space: Space, sampler: str) -> None:
    """Reject what Katib cannot search."""
    values = [(item.name, value) for item in space.dimensions for value in item.limits]
    problems = [
        f"{name}={value!r} has characters that Katib cannot pass on"
        for name, value in values
        if not _PLAIN.fullmatch(str(value))
    ]
    ranges = sum(isinstance(item, Range) for item in space.dimensions)
    if sampler == Sampler.CMAES and ranges < _CMAES_RANGES:
        problems.append(f"`sampler` {sampler} needs at least {_CMAES_RANGES} ranges of numbers, not {ranges}")
    refuse(WHAT, problems)


def _feasible(item: Dimension) -> dict[str, Any]:
    if isinstance(item, Choice):
        return {"parameterType": "categorical", "feasibleSpace": {"list": list(map(_text, item.values))}}
    limits = {"min": _text(item.low), "max": _text(item.high)}
    scale = {"distribution": "logUniform"} if item.log else {}
    return {"parameterType": "int" if item.whole else "double", "feasibleSpace": {**limits, **scale}}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def template(space: Space, recipe: Recipe) -> str:
    """The recipe of a trial as JSON in which Katib fills in the values."""
    texts = {item.name for item in declared(Recipe) if item.kind is str}
    open_ended = {name: f"${{trialParameters.{name}}}" for name in space.names}
    text = json.dumps({**recipe.to_dict(), **open_ended})
    for item in space.dimensions:
        if item.name not in texts:  # numbers, true and false are not quoted
            text = text.replace(f'"{open_ended[item.name]}"', open_ended[item.name])
    return text


def recipe_of(recipe: Recipe, values: Mapping[str, str], trial: str) -> Recipe:
    """The recipe of a trial from the values that Katib reports as text."""
    try:
        return recipe_with(recipe, {name: parsed_value(name, text) for name, text in values.items()})
    except ValueError as error:
        raise OutputMissing(
            what="the search left no recipe",
            which=trial,
            seen=f"its values cannot be read: {error}",
            do="See the trial: kubectl get trials.kubeflow.org -o yaml.",
        ) from error
