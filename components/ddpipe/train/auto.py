"""What `auto` means: a pure function of what was measured, the device, and the values that were given.

    weights      pretrained ones for photographs, if they can be had
    network      by image size, channels and device; that of existing weights, if there are any
    resolution   by a budget of pixels: small sets learn nothing from detail, and a CPU has no time for it
    steps        not epochs: 120 images need more passes than 50,000
    rate         by network and optimizer, scaled with the batch

A value that was given always wins, and the others are chosen to suit it. The table of cases is
tests/unit/train/test_auto.py; benchmarks/bench_defaults.py compares the choices with recipes by hand.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ddpipe.data.reduced import working_shape
from ddpipe.model import ARCHITECTURES, is_own_function
from ddpipe.parameters import AUTO
from ddpipe.train.choice import Choice, Device, Measured
from ddpipe.train.families import DECAYS, MOMENTA, WARMUPS, Family, family_of
from ddpipe.train.passes import MANY, WIDE_PASSES, epochs_for, wide_seconds
from ddpipe.train.recipe import NONE, Recipe

TRUSTED = 400
"""Validation images from which the best epoch is selected: with fewer, chance decides which one is best."""

IMBALANCE = 5
"""From this ratio of the largest class to the smallest on, classes are weighted."""

FEWEST_WARMUP = 20
"""Steps of a warm-up."""

BATCHES = (16, 512)
"""The smallest and the largest batch."""

STEPS_OF_A_PASS = 32
"""The batch is so small that an epoch has about so many steps."""

SIDES = {"cpu": 64, "cuda": 128}
"""Working resolutions of photographs by device, for networks with random weights."""

PRETRAINED_SIDES = {"cpu": 128, "cuda": 224}
"""Pretrained weights know what larger images look like."""

PHOTOGRAPHS = 20_000
"""From more of them, random weights learn nearly as much."""

USUAL = "resnet18"
"""The smallest common network with pretrained weights."""

GRAY_DIGITS = 32
"""Pixels: gray images of at most this size get LeNet."""

SMALLEST_FAST = 16
"""Pixels that fast-cnn needs."""


PRETRAINED_SHARE = 0.5
"""Of the rate from scratch: more would destroy what the weights know."""


def wanted_weights(data: Measured, recipe: Recipe) -> str:
    """The network whose pretrained weights would suit the images; empty if there is none."""
    name = USUAL if recipe.model == AUTO else recipe.model
    is_known = name not in ARCHITECTURES and not is_own_function(name)
    is_open = recipe.pretrained == AUTO and not recipe.warm_start
    return name if is_open and is_known and not _against_pretrained(data) else ""


def _against_pretrained(data: Measured) -> str:
    """Why pretrained weights, which know photographs, would not help; empty if they would."""
    if data.shape[2] != 3:  # noqa: PLR2004 - red, green and blue
        return "gray images are unlike the photographs that pretrained weights know"
    if data.side <= SIDES["cpu"]:
        return f"images of {data.side} pixels are smaller than what pretrained weights know"
    if data.images > PHOTOGRAPHS:
        return f"{data.images:,} images suffice for random weights"
    return ""


def choose(data: Measured, device: Device, recipe: Recipe) -> Choice:
    """Choose all that a recipe leaves open."""
    maker = _Maker(data, device, recipe)
    for decide in _DECISIONS:
        decide(maker)
    return Choice(maker.recipe, maker.reasons, _views(maker), _advice(maker))


class _Maker:
    """A recipe that becomes complete: each decision sees those before it."""

    def __init__(self, data: Measured, device: Device, recipe: Recipe) -> None:
        self.data, self.device, self.recipe = data, device, recipe
        self.open = recipe.automatic()
        self.reasons: dict[str, str] = {}

    def set(self, name: str, value: Any, why: str) -> None:  # noqa: ANN401 - of the parameter's own type
        """Set a value, unless one was given."""
        if name in self.open:
            self.recipe = replace(self.recipe, **{name: value})
            self.reasons[name] = why

    @property
    def has_weights(self) -> bool:
        return self.recipe.has_pretrained

    @property
    def family(self) -> Family:
        return family_of(self.recipe.model)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.recipe.epochs * -(-self.data.images // self.recipe.batch_size)


def _weights(maker: _Maker) -> None:
    data, recipe = maker.data, maker.recipe
    if recipe.warm_start:
        maker.set("pretrained", NONE, f"the weights of {recipe.warm_start} are given")
    elif reason := _against_pretrained(data):
        maker.set("pretrained", NONE, reason)
    elif not data.weights:
        maker.set("pretrained", NONE, f"torchvision has no weights of {recipe.model}")
    else:
        maker.set("pretrained", "torchvision" if data.weights.found else NONE, data.weights.seen)


def _network(maker: _Maker) -> None:
    data = maker.data
    if data.network:
        maker.set("model", data.network, "the network of the weights to start from")
    elif maker.has_weights:
        maker.set("model", USUAL, "the smallest common network with pretrained weights")
    elif data.side < SMALLEST_FAST:
        maker.set("model", "digits-cnn", f"images of {data.side} pixels need a small network")
    elif data.shape[2] == 1 and data.side <= GRAY_DIGITS:
        maker.set("model", "lenet", f"gray images of {data.side} pixels need a small network")
    elif maker.device.kind == "cpu" and (few := _too_few_for_wide(maker)):
        maker.set("model", "fast-cnn-small", f"learns fast from random weights, {few}")
    else:
        maker.set("model", "fast-cnn", "learns fast from random weights at any image size")


def _too_few_for_wide(maker: _Maker) -> str:
    """What is too little for the wide fast-cnn on a CPU; empty if nothing is."""
    data, minutes = maker.data, maker.recipe.minutes
    pixels = min(data.side, SIDES["cpu"]) ** 2
    if data.images < MANY:
        return f"{data.images:,} images are few"
    if 0 < 60 * minutes < WIDE_PASSES * wide_seconds(data.images, pixels):
        return f"{minutes:g} minutes are few for {data.images:,} images"
    return ""


def _resolution(maker: _Maker) -> None:
    data = maker.data
    device = maker.device.kind
    side = (PRETRAINED_SIDES if maker.has_weights else SIDES)[device]
    if data.network_side:
        seen = data.network_side if data.network_side < data.side else 0
        maker.set("resolution", seen, "the size of images that the weights to start from know")
    elif data.sized:
        maker.set("resolution", 0, f"images of {data.side} pixels were asked for")
    elif data.side <= side:
        maker.set("resolution", 0, f"images of {data.side} pixels are small enough")
    else:
        why = "pretrained weights" if maker.has_weights else f"{data.images:,} images from random weights"
        maker.set("resolution", side, f"detail beyond it costs more than it helps with {why} on {device}")


def _batch(maker: _Maker) -> None:
    smallest, largest = BATCHES
    size = 2 ** int(math.log2(max(1, maker.data.images / STEPS_OF_A_PASS)))
    least = max(smallest, maker.device.processes)
    maker.set(
        "batch_size", min(max(size, least), max(largest, least)), f"{maker.data.images:,} training images"
    )


def _optimizer(maker: _Maker) -> None:
    family, data, name = maker.family, maker.data, maker.recipe.model
    maker.set("optimizer", "sgd" if maker.has_weights else family.optimizer, f"suits {name}")
    how, batch = maker.recipe.optimizer, maker.recipe.batch_size
    rate = family.rates[how] * (batch / family.batch) ** (family.power if how == "sgd" else 0.5)
    if maker.has_weights:
        rate *= PRETRAINED_SHARE
    given = f"{how}, {name} and batches of {batch}"
    maker.set("learning_rate", float(f"{rate:.2g}"), f"suits {given}")
    maker.set("momentum", MOMENTA[how], f"suits {how}")
    maker.set("weight_decay", DECAYS[how], f"suits {how}")
    maker.set("schedule", "linear" if how == "muon" else "cosine", f"suits {how}")
    smoothing = family.smoothing if data.task == "multiclass" else 0.0
    maker.set("label_smoothing", smoothing, f"suits {name}" if smoothing else f"none for {data.task} {name}")


def _epochs(maker: _Maker) -> None:
    data, batch = maker.data, maker.recipe.batch_size
    height, width, _ = working_shape(data.shape, maker.recipe.resolution)
    epochs = epochs_for(data.images, height * width, batch, maker.device.kind, has_weights=maker.has_weights)
    steps = -(-data.images // batch)
    minutes = maker.recipe.minutes
    why = (
        f"not used: {minutes:g} minutes decide" if minutes else f"{epochs * steps:,} steps of {batch} images"
    )
    maker.set("epochs", max(epochs, maker.recipe.frozen_epochs), why)
    least = WARMUPS[maker.recipe.optimizer]
    share = min(0.5, max(least, FEWEST_WARMUP / maker.steps)) if least else 0.0
    maker.set("warmup_fraction", round(share, 4), f"{round(share * maker.steps)} of {maker.steps:,} steps")


def _images(maker: _Maker) -> None:
    data, family = maker.data, maker.family
    gray = data.shape[2] == 1
    if data.side < SMALLEST_FAST or (gray and data.side <= GRAY_DIGITS):
        maker.set("augmentation", "shift", "small gray images, where a mirror image may be another class")
    elif gray:
        maker.set("augmentation", "shift", "gray images, where left and right may differ in meaning")
    else:
        maker.set("augmentation", "shift-alternating-flip", "color images, which look alike in a mirror")
    side = min(working_shape(data.shape, maker.recipe.resolution)[:2])
    grows = family.grows and side >= 2 * SMALLEST_FAST
    maker.set(
        "initial_resolution",
        0.75 if grows else 1.0,
        "early steps need less detail" if grows else f"{maker.recipe.model} sees images of {side} pixels",
    )


def _balance(maker: _Maker) -> None:
    ratio = maker.data.imbalance
    weighted = ratio >= IMBALANCE and maker.data.task == "multiclass"
    maker.set(
        "class_weights",
        "balanced" if weighted else "none",
        f"the largest class has {ratio:.3g} times the images of the smallest"
        if maker.data.task == "multiclass"
        else "the ranking of images by a label does not need them",
    )


def _selection(maker: _Maker) -> None:
    seen, patience = maker.data.validation, maker.recipe.patience
    if patience:
        maker.set("model_selection", "best", "patience may stop the training after it")
    elif seen >= TRUSTED:
        maker.set(
            "model_selection",
            "best",
            f"{seen:,} validation images, at least {TRUSTED}, can tell epochs apart",
        )
    else:
        maker.set(
            "model_selection",
            "last",
            f"{seen} validation images, fewer than {TRUSTED}, cannot tell epochs apart",
        )
    decay = 0.0 if maker.recipe.model_selection == "best" else round(max(0.0, 1 - 20 / maker.steps), 4)
    maker.set(
        "averaging_decay",
        min(decay, 0.99),
        "no average beside the best epoch" if not decay else "an average varies less than the last weights",
    )


def _views(maker: _Maker) -> tuple[str, str]:
    if "flip" in maker.recipe.augmentation:
        return "flips", f"trained on mirror images, too (augmentation {maker.recipe.augmentation})"
    return "plain", "not trained on mirror images"


def _advice(maker: _Maker) -> str:
    if _against_pretrained(maker.data) or maker.has_weights or maker.recipe.warm_start:
        return ""
    return (
        f"trained from random weights; with {maker.data.images:,} photographs, pretrained weights usually "
        "give a clearly better model: --pretrained with torchvision on a connected machine, or with a file"
    )


_DECISIONS = (_weights, _network, _resolution, _batch, _optimizer, _epochs, _images, _balance, _selection)
"""In an order in which each finds what it needs."""
