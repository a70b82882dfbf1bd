"""The values of a run, checked once: for `run`, each step, `submit`, `schedule` and a form's first step.

    options, arguments of a function, fields of a form ──▶ values by name ──▶ RunSettings ──▶ groups

Each group of parameters checks its own values; here, all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddpipe.parameters import Parameters, declared, refuse
from ddpipe.search import SearchOptions
from ddpipe.search.space import problems_of
from ddpipe.train.recipe import Recipe

Values = Mapping[str, Any]
P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Valid values of a run by name, from which its parts take their groups."""

    values: Values
    given: Collection[str]  # the hyperparameters that the user set

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - of the parameter's own type
        return self.values[name]

    def of(self, group: type[P]) -> P:
        """The parameters of a group."""
        return group.from_run_values(self.values)


def checked(
    what: str,
    groups: Iterable[type[Parameters]],
    values: Values,
    given: Collection[str],
    wrong: Iterable[str] = (),
) -> RunSettings:
    """The settings of a run, whose object store is used from now on; `wrong` is wrong with their names."""
    refuse(what, [*wrong, *problems(groups, values, given)])
    if values.get("s3_endpoint"):  # unless the environment names one, which may differ outside the cluster
        os.environ.setdefault("S3_ENDPOINT", values["s3_endpoint"])
    return RunSettings(values, given)


def problems(groups: Iterable[type[Parameters]], values: Values, given: Collection[str]) -> list[str]:
    """Everything that is wrong with the values of a run; nothing if they are valid."""
    groups = tuple(groups)
    found = dict.fromkeys(problem for group in groups for problem in group.from_run_values(values).problems())
    # The space of a search is around the recipe, unless that is in a file.
    if found or not {SearchOptions, Recipe} <= set(groups) or values.get("recipe"):
        return list(found)
    return problems_of(SearchOptions.from_run_values(values).search, Recipe.from_run_values(values), given)


def set_in_form(values: Values) -> set[str]:
    """The hyperparameters that the user of a form set."""
    # A field of its own always has a value, and counts if that is not the default; an option in an object is
    # there because the user wrote it.
    items = [item for item in declared(Recipe) if item.name in values]
    return {item.name for item in items if not item.alone or values[item.name] != item.default}
