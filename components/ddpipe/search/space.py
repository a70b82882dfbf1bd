"""The space of a search, from text: which hyperparameters vary, and among which values.

    learning_rate=log(0.01,1)       numbers between two limits, by their logarithms
    momentum=0.5..0.9               numbers between two limits
    model=fast-cnn,resnet18         some of several values
    learning_rate                   the declared typical range, or every allowed name

The declarations of the hyperparameters validate everything, and all problems are reported together.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpipe.errors import OutputMissing, ParameterError
from ddpipe.form import unknown
from ddpipe.parameters import AUTO, OneOf, Parameter, declared, refuse
from ddpipe.train.recipe import Recipe

WHAT = "the search cannot start"  # how an error about the space begins
MOST = 32  # dimensions of a space, and values of one; a sampler learns nothing useful from more
_NUMBER = r"\s*([^\s,()]+?)\s*"
_LOG = re.compile(rf"log\({_NUMBER},{_NUMBER}\)")
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}")
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two limits, whole ones or any; with `log`, factors count."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def limits(self) -> tuple[float, float]:
        """Both limits, as values of the hyperparameter."""
        return (self.low, self.high)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __str__(self) -> str:
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        return f"{self.name}=log({low},{high})" if self.log else f"{self.name}={low}..{high}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Some of several values."""

    name: str
    values: tuple[Any, ...]

    @property
    def limits(self) -> tuple[Any, ...]:
        """All of them."""
        return self.values

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(_written, self.values))}"


Dimension = Range | Choice


@dataclass(frozen=True, slots=True)
class Space:
    """What a search varies: one dimension for each hyperparameter."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        """The hyperparameters that vary."""
        return [item.name for item in self.dimensions]

    def of(self, recipe: Recipe) -> dict[str, Any]:
        """The values of a recipe in this space's dimensions."""
        return {name: getattr(recipe, name) for name in self.names}

    def __contains__(self, values: Mapping[str, Any]) -> bool:
        return all(values[item.name] in item for item in self.dimensions)

    def written(self) -> list[str]:
        """The text of each dimension, as `parsed` reads it."""
        return list(map(str, self.dimensions))


def parsed(texts: Sequence[str]) -> Space:
    """The space that these texts describe."""
    space, problems = _read(texts)
    refuse(WHAT, problems)
    return space


def checked(space: Space, recipe: Recipe, given: Iterable[str] = ()) -> Space:
    """The same space, if the rest of the recipe suits every limit and every choice of it."""
    refuse(WHAT, _conflicts(space, recipe, given))
    return space


def problems_of(texts: Sequence[str], recipe: Recipe, given: Iterable[str]) -> list[str]:
    """What `parsed` or `checked` would reject; nothing if the space is valid."""
    space, problems = _read(texts)
    return problems or _conflicts(space, recipe, given)


def _read(texts: Sequence[str]) -> tuple[Space, list[str]]:
    """The space, and what is wrong with the texts."""
    items = {item.name: item for item in declared(Recipe) if item.shapes}
    found: dict[str, Dimension] = {}
    problems: list[str] = (
        [] if texts else ["nothing is searched: name a hyperparameter, such as `search` learning_rate"]
    )
    if len(texts) > MOST:
        problems.append(f"{len(texts)} hyperparameters are searched, more than {MOST}")
    for text in texts[:MOST]:
        name, separator, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in items:
            problems.append(f"{text!r}: {unknown(name, items)}")
        elif name in found:
            problems.append(f"{text!r}: {name} is searched twice")
        else:
            try:
                found[name] = _dimension(items[name], values.strip() if separator else None)
            except ValueError as error:
                problems.append(f"{text!r}: {error}")
    return Space(tuple(found.values())), problems


def _conflicts(space: Space, recipe: Recipe, given: Iterable[str]) -> list[str]:
    """What does not go together: the space, the rest of the recipe, and what the user set."""
    problems = [
        f"{name} is searched and set to one value; leave out one of them"
        for name in space.names
        if name in set(given)
    ]
    if recipe.minutes or "minutes" in space.names:
        problems.append(
            "`minutes` limits a trial by its time, which differs from trial to trial: give `epochs`"
        )
    wrong = dict.fromkeys(
        f"with {item.name}={_written(value)}: {problem}"
        for item in space.dimensions
        for value in item.limits
        for problem in Recipe.from_run_values({**recipe.to_dict(), item.name: value}).problems()
    )
    return [*problems, *wrong]


def _dimension(item: Parameter, text: str | None) -> Dimension:
    if text is None:
        return _typical(item)
    if found := _LOG.fullmatch(text):
        return _range(item, found[1], found[2], log=True)
    if item.kind in {int, float} and (found := _RANGE.fullmatch(text)):
        return _range(item, found[1], found[2], log=False)
    return _choice(item, [part.strip() for part in text.split(",")])


def _typical(item: Parameter) -> Dimension:
    if item.typical:
        return Range(item.name, item.typical.low, item.typical.high, item.typical.log, item.kind is int)
    if isinstance(item.allowed, OneOf) and len(item.allowed.names) > 1:
        return Choice(item.name, tuple(name for name in item.allowed.names if name != AUTO))
    if item.kind is bool:
        return Choice(item.name, (True, False))
    raise ValueError(f"it has no typical values; name some: {_example(item)}")


def _range(item: Parameter, low: str, high: str, *, log: bool) -> Range:
    if item.kind not in {int, float}:
        raise ValueError(f"it has no numbers; name values: {_example(item)}")
    limits = [_value(item, text) for text in (low, high)]
    if not limits[0] < limits[1]:
        raise ValueError(f"the lower limit {low} is not below the upper limit {high}")
    if log and limits[0] <= 0:
        raise ValueError(f"a logarithmic range starts above 0, not at {low}")
    return Range(item.name, limits[0], limits[1], log, item.kind is int)


def _choice(item: Parameter, texts: list[str]) -> Choice:
    values = tuple(_value(item, text) for text in texts)
    if len(values) == 1:
        raise ValueError(f"one value leaves nothing to search; for example: {_example(item)}")
    if len(values) > MOST:
        raise ValueError(f"it has {len(values)} values, more than {MOST}")
    if len(set(values)) < len(values):
        raise ValueError("a value is named twice")
    return Choice(item.name, values)


def _value(item: Parameter, text: str) -> Any:  # noqa: ANN401 - of the hyperparameter's own type
    """A value of a hyperparameter from text; an error if it cannot have it."""
    value = _BOOLS.get(text.lower(), text) if item.kind is bool else item.read(text)
    if isinstance(value, float) and not math.isfinite(value):
        value = text
    if value == AUTO:
        raise ValueError(f"{AUTO} is no value to search: it would be another one for each trial")
    if problem := item.problem(value):
        raise ValueError(problem)
    return value


def _example(item: Parameter) -> str:
    if item.kind in {int, float}:
        return f"{item.name}=LOW..HIGH, {item.name}=log(LOW,HIGH) or {item.name}=VALUE,VALUE"
    names = list(item.allowed.names)[:3] if isinstance(item.allowed, OneOf) else ["VALUE", "VALUE"]
    return f"{item.name}={','.join(names)}"


def _written(value: Any) -> str:  # noqa: ANN401 - of a hyperparameter's own type
    return str(value).lower() if isinstance(value, bool) else str(value)


def recipe_with(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """A recipe with other values."""
    try:
        return Recipe.from_dict({**recipe.to_dict(), **values})
    except ParameterError as error:
        named = ", ".join(f"{name}={_written(value)}" for name, value in values.items())
        raise ParameterError(what=error.what, which=named, seen=error.seen, do=error.do) from error


# In Katib's terms.

_PLAIN = re.compile(r"[\w.:/@+-]*")


def katib_parameters(space: Space) -> list[dict[str, Any]]:
    """What varies, as an Experiment has it."""
    return [{"name": item.name, **_feasible(item)} for item in space.dimensions]


def check_katib(space: Space) -> None:
    """Reject what Katib cannot search."""
    values = [(item.name, value) for item in space.dimensions for value in item.limits]
    problems = [
        f"{name}={value!r} has characters that Katib cannot pass on"
        for name, value in values
        if not _PLAIN.fullmatch(str(value))
    ]
    refuse(WHAT, problems)


def _feasible(item: Dimension) -> dict[str, Any]:
    if isinstance(item, Choice):
        return {"parameterType": "categorical", "feasibleSpace": {"list": list(map(_written, item.values))}}
    limits = {"min": _written(item.low), "max": _written(item.high)}
    scale = {"distribution": "logUniform"} if item.log else {}
    return {"parameterType": "int" if item.whole else "double", "feasibleSpace": {**limits, **scale}}


def trial_template(space: Space, recipe: Recipe) -> str:
    """The recipe of a trial as JSON in which Katib fills in the values."""
    texts = {item.name for item in declared(Recipe) if item.kind is str}
    open_ended = {name: f"${{trialParameters.{name}}}" for name in space.names}
    text = json.dumps({**recipe.to_dict(), **open_ended})
    for item in space.dimensions:
        if item.name not in texts:  # numbers, true and false are not quoted
            text = text.replace(f'"{open_ended[item.name]}"', open_ended[item.name])
    return text


def recipe_of_trial(recipe: Recipe, values: Mapping[str, str], trial: str) -> Recipe:
    """The recipe of a trial from the values that Katib reports as text."""
    items = {item.name: item for item in declared(Recipe)}
    try:
        return recipe_with(recipe, {name: _value(items[name], text) for name, text in values.items()})
    except (KeyError, ValueError) as error:
        raise OutputMissing(
            what="the search left no recipe",
            which=trial,
            seen=f"its values cannot be read: {error}",
            do="See the trial: kubectl get trials.kubeflow.org -o yaml.",
        ) from error
