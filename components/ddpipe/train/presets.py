"""Recipes by name: values that go together, each a starting point whose every field can still be changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ddpipe.errors import ParameterError
from ddpipe.parameters import OneOf, Parameters, parameter
from ddpipe.train.recipe import FAST, NONE, NORMALIZED, RESIDUAL, Recipe


@dataclass(frozen=True, slots=True)
class Preset:
    """Some values of a recipe, with all that the data could choose, and what they reached where."""

    help: str
    values: Mapping[str, Any]
    measured: str = ""


_PLAIN: Mapping[str, Any] = {
    "pretrained": NONE,
    "model": "digits-cnn",
    "resolution": 0,
    "epochs": 15,
    "batch_size": 64,
    **NORMALIZED.values(),
    "class_weights": "none",
    "augmentation": "none",
    "initial_resolution": 1.0,
    "averaging_decay": 0.0,
}
"""A value for all that the data could choose: a preset means the same on any data."""

_FAST: Mapping[str, Any] = {
    **_PLAIN,
    **FAST.values(),
    "batch_size": 500,
    "augmentation": "shift-alternating-flip",
    "precision": "auto",
}

PRESETS: Mapping[str, Preset] = {
    "plain": Preset(
        "The small network digits-cnn at full image size, SGD with batches of 64, for fifteen epochs.", _PLAIN
    ),
    "documents": Preset(
        "The training loop of many tutorials: SimpleCNN, SGD with a constant rate, batches of 64, fp32.",
        {
            **_PLAIN,
            "model": "simple-cnn",
            "epochs": 10,
            "learning_rate": 0.01,
            "schedule": "constant",
            "warmup_fraction": 0.0,
            "weight_decay": 0.0,
            "precision": "fp32",
        },
        "CIFAR-10 as JPEGs: best accuracy 0.699; two processes take 0.38 of the tutorial's own time.",
    ),
    "quick-32": Preset(
        "A first result on images of about 32x32 pixels, in one epoch.",
        {
            **_FAST,
            "model": "fast-cnn-small",
            "epochs": 1,
            "initial_resolution": 0.5,
        },
        "CIFAR-10 as JPEGs: accuracy 0.720 (0.731 with test-time flips) in 0.05 of that time.",
    ),
    "fast-32": Preset(
        "An accurate network for images of about 32x32 pixels, in twelve epochs.",
        {
            **_FAST,
            "model": "fast-cnn",
            "epochs": 12,
            "initial_resolution": 0.75,
        },
        "CIFAR-10 as JPEGs: accuracy 0.899 (0.908 with test-time flips) in 1.84 of that time.",
    ),
    "finetune": Preset(
        "ResNet-18 with pretrained weights, for a few thousand photographs; the last layer is trained first.",
        {
            **_PLAIN,
            "model": "resnet18",
            "pretrained": "torchvision",
            "epochs": 10,
            "frozen_epochs": 1,
            **RESIDUAL.values(),
            "learning_rate": 0.01,
            "weight_decay": 1e-4,
            "augmentation": "photo",
        },
    ),
}
"""By name."""


def recipe_of(preset: str, given: Mapping[str, Any]) -> Recipe:
    """The recipe of a preset's values and, before them, given ones."""
    if preset and preset not in PRESETS:
        raise ParameterError(
            what=Recipe.what,
            which=f"preset {preset!r}",
            seen="there is no preset of this name",
            do=f"Choose one of: {', '.join(PRESETS)}.",
        )
    values = PRESETS[preset].values if preset else {}
    try:
        return Recipe.from_dict({**values, **given})
    except ParameterError as error:
        hidden = [
            f"{name}={value}"
            for name, value in values.items()
            if name not in given and re.search(rf"\b{name}\b", error.seen)
        ]
        if not hidden:
            raise
        raise ParameterError(
            what=error.what,
            which=error.which,
            seen=error.seen,
            do=f"Correct these values; preset {preset} sets {', '.join(hidden)}: give your own instead.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions(Parameters):
    """Which preset a recipe starts from."""

    what: ClassVar[str] = Recipe.what
    heading: ClassVar[str] = Recipe.heading
    others: ClassVar[str] = Recipe.others

    preset: str = parameter(
        "",
        f"Preset to start from: {', '.join(PRESETS)}; hyperparameters that are given override it.",
        OneOf(("", *PRESETS)),
        form="train_preset",
    )
    recipe: str = parameter(
        "",
        "Recipe to start from instead: a study (its folder, whose best recipe is used), or a JSON object of "
        "hyperparameters; those that are given override it.",
        form="train_recipe",
    )

    def conflicts(self) -> Iterator[str]:
        """What is wrong with both."""
        if self.preset and self.recipe:
            yield "`preset` and `recipe` both name a recipe to start from; give one of them"
