"""One validation of all values of a run: for `run`, each step, `submit`, `schedule` and a form's first step.

Each group of parameters checks its own values; here, they are checked together, with those of the preset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ddpipe.jobs import LOCAL
from ddpipe.jobs.options import JobOptions
from ddpipe.parameters import CHOSEN, Parameters, declared
from ddpipe.search.options import SearchOptions
from ddpipe.search.space import problems_of
from ddpipe.spelling import option
from ddpipe.train.presets import PRESETS, PresetOptions
from ddpipe.train.recipe import Recipe

Values = Mapping[str, Any]


def problems(groups: Iterable[type[Parameters]], values: Values, given: Collection[str]) -> list[str]:
    """Everything that is wrong with the values of a run; nothing if they are valid."""
    groups = tuple(groups)
    used = with_preset(values, given) if PresetOptions in groups else values
    found = dict.fromkeys(problem for group in groups for problem in group.problems_in(used))
    return list(found) or [*_across(groups, used), *_of_search(groups, used, given)]


def with_preset(values: Values, given: Collection[str]) -> dict[str, Any]:
    """The values, with those of the chosen preset for hyperparameters that the user did not set."""
    preset = PRESETS.get(values.get("preset", ""))
    chosen = preset.values if preset else {}
    return {**values, **{name: value for name, value in chosen.items() if name not in given}}


def set_in_form(values: Values) -> set[str]:
    """The hyperparameters that the user of a form set.

    A field of its own always has a value, and counts if that is not the default; an option in an object is
    there because the user wrote it.
    """
    items = [item for item in declared(Recipe) if item.name in values]
    return {item.name for item in items if not item.alone or values[item.name] != item.default}


def _across(groups: tuple[type[Parameters], ...], values: Values) -> Iterator[str]:
    """What is wrong with values of several groups together."""
    job = next((group for group in groups if issubclass(group, JobOptions)), None)
    if job is None or Recipe not in groups:
        return
    options, recipe = job.picked(values), Recipe.picked(values)
    processes = options.processes_per_pod * (1 if options.backend == LOCAL else options.nodes)
    share = -(-recipe.batch_size // processes)
    if recipe.batch_size != CHOSEN and recipe.accumulation_steps > share:
        yield (
            f"{option('accumulation_steps')} is {recipe.accumulation_steps}, more than the {share} samples "
            f"that each of {processes} processes has in a step: some micro-batches would be empty"
        )


def _of_search(groups: tuple[type[Parameters], ...], values: Values, given: Collection[str]) -> list[str]:
    """What is wrong with the space of a search around the recipe, unless that is in a file."""
    if not {SearchOptions, Recipe} <= set(groups) or values.get("recipe"):
        return []
    return problems_of(SearchOptions.picked(values).search, Recipe.picked(values), given)
