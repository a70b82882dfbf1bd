"""Hyperparameters: one frozen dataclass, the same for the CLI, the pipeline and the checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ddpipe.errors import ParameterError, listed
from ddpipe.model import ARCHITECTURES
from ddpipe.train.augmentation import AUGMENTATIONS


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers from `low` to `high`; `open_low` and `open_high` leave the end itself out."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        return f"{'above' if self.open_low else 'from'} {low} {'to below' if self.open_high else 'to'} {high}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of some names."""

    names: Collection[str]

    def __contains__(self, value: str) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return " or ".join(self.names)


def _parameter(default: Any, allowed: _Range | _Choice, help_text: str, *, compare: bool = True) -> Any:  # noqa: ANN401 - the field's annotation says what it is
    return field(default=default, compare=compare, metadata={"help": help_text, "allowed": allowed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train; the help text of each field is in its metadata. Equal recipes give equal models."""

    model: str = _parameter(
        "digits-cnn", _Choice(ARCHITECTURES), f"Network to train: {', '.join(ARCHITECTURES)}."
    )
    epochs: int = _parameter(15, _Range(1, 100_000), "Times that every sample is seen.")
    batch_size: int = _parameter(
        64, _Range(1, 1_000_000), "Samples in one step, over all processes together."
    )
    learning_rate: float = _parameter(
        0.1,
        _Range(0, 10, open_low=True),
        "Highest learning rate: reached after warm-up, then falling along a cosine to 0.",
    )
    momentum: float = _parameter(0.9, _Range(0, 1, open_high=True), "Nesterov momentum of SGD; 0 is without.")
    weight_decay: float = _parameter(5e-4, _Range(0, 1), "L2 penalty on all weights.")
    warmup_fraction: float = _parameter(
        0.1,
        _Range(0, 1, open_high=True),
        "Part of all steps in which the learning rate rises to its highest.",
    )
    label_smoothing: float = _parameter(
        0.0, _Range(0, 1, open_high=True), "Part of the target that is spread evenly over all classes."
    )
    augmentation: str = _parameter(
        "none",
        _Choice(AUGMENTATIONS),
        f"Random changes to training images: {', '.join(AUGMENTATIONS)}.",
    )
    precision: str = _parameter(
        "fp32",
        _Choice(("fp32", "bf16")),
        "Arithmetic of the network: fp32, or bf16 (mixed, with fp32 weights).",
    )
    seed: int = _parameter(0, _Range(0, 2**32 - 1), "Decides the first weights and the order of the samples.")
    checkpoint_minutes: float = _parameter(
        5.0,
        _Range(0, 1440, open_low=True),
        "Longest time between two checkpoints; every epoch ends with one anyway.",
        compare=False,
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """A valid recipe from names and values; what is not named has its default.

        Raises:
            ParameterError: Names that are no parameters, and values that can not be; all of them are listed.
        """
        names = [item.name for item in fields(cls)]
        unknown = [
            f"{name!r} is no parameter; there are {', '.join(names)}" for name in values if name not in names
        ]
        recipe = cls(**{name: value for name, value in values.items() if name in names})
        _refuse([*unknown, *_problems(recipe)])
        return recipe

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """A valid recipe from a JSON object of names and values.

        Raises:
            ParameterError: As `from_dict`; or the text is no JSON object.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            values = error
        if not isinstance(values, dict):
            _refuse([f"{text!r} is not a JSON object of names and values"])
        return cls.from_dict(values)

    def validated(self) -> Recipe:
        """This recipe itself.

        Raises:
            ParameterError: Values that can not be; all of them are listed.
        """
        _refuse(list(_problems(self)))
        return self

    def shaping(self) -> dict[str, Any]:
        """Names and values of all that shapes the model."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.compare}

    def to_dict(self) -> dict[str, Any]:
        """Names and values."""
        return asdict(self)

    def to_json(self) -> str:
        """Names and values as `from_json` takes them."""
        return json.dumps(self.to_dict())

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of one step, counted from 0: up a line, then down half a cosine to 0."""
        warmup = round(self.warmup_fraction * steps)
        if step < warmup:
            return self.learning_rate * ((step + 1) / warmup)
        return self.learning_rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def _problems(recipe: Recipe) -> Iterator[str]:
    """What is wrong with each value."""
    for item in fields(recipe):
        value, kind = getattr(recipe, item.name), type(item.default)
        # JSON may write 1.0 as 1, and a bool is an int to Python only.
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits or value not in item.metadata["allowed"]:
            article = {int: "a whole number ", float: "a number ", str: ""}[kind]
            yield f"{item.name} is {value!r}, not {article}{item.metadata['allowed']}"


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ParameterError(
            what="training can not start", which="recipe", seen=listed(problems), do="Correct these values."
        )
