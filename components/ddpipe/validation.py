"""One validation of all values of a run: for `run`, each step, `submit`, `schedule` and a form's first step.

Each group of parameters checks its own values; here, they are checked together, with those of the preset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ddpipe.parameters import Parameters, declared
from ddpipe.search import SearchOptions
from ddpipe.search.space import problems_of
from ddpipe.train.presets import PRESETS, PresetOptions
from ddpipe.train.recipe import Recipe

Values = Mapping[str, Any]


def problems(groups: Iterable[type[Parameters]], values: Values, given: Collection[str]) -> list[str]:
    """Everything that is wrong with the values of a run; nothing if they are valid."""
    groups = tuple(groups)
    preset = PRESETS.get(values.get("preset", "")) if PresetOptions in groups else None
    chosen = preset.values if preset else {}
    used = {**values, **{name: value for name, value in chosen.items() if name not in given}}
    found = dict.fromkeys(problem for group in groups for problem in group.problems_in(used))
    # The space of a search is around the recipe, unless that is in a file.
    if found or not {SearchOptions, Recipe} <= set(groups) or used.get("recipe"):
        return list(found)
    return problems_of(SearchOptions.from_run_values(used).search, Recipe.from_run_values(used), given)


def set_in_form(values: Values) -> set[str]:
    """The hyperparameters that the user of a form set."""
    # A field of its own always has a value, and counts if that is not the default; an option in an object is
    # there because the user wrote it.
    items = [item for item in declared(Recipe) if item.name in values]
    return {item.name for item in items if not item.alone or values[item.name] != item.default}
