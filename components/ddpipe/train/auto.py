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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.shards import working_shape
from ddpipe.model import ARCHITECTURES, is_own_function
from ddpipe.parameters import AUTO
from ddpipe.train import constants
from ddpipe.train.recipe import AUGMENTATIONS, NONE, Recipe

if TYPE_CHECKING:  # torch takes seconds to import
    from ddpipe.model.torchvision_models import Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What prepare measured."""

    task: str
    shape: tuple[int, int, int]
    images: int
    per_class: tuple[int, ...]
    validation: int
    network: str = ""  # of the weights of a warm start, if they name it
    network_side: int = 0
    # Whether pretrained weights that suit the images can be had; None if none were looked for
    weights: Lookup | None = None
    sized: bool = False

    @property
    def side(self) -> int:
        """The shorter side."""
        return min(self.shape[:2])

    @property
    def imbalance(self) -> float:
        """The largest class to the smallest that is there; of labels, absent to present of the rarest."""
        counts = [count for count in self.per_class if count]
        if not counts:
            return 1.0
        return (max(counts) if self.task == "multiclass" else self.images - min(counts)) / min(counts)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a training runs: "cpu" or "cuda", and how many processes share each batch."""

    kind: str = "cpu"
    processes: int = 1


@dataclass(frozen=True, slots=True)
class ChosenRecipe:
    """Values for what was left open, and why; `views` at test time come with their reason."""

    recipe: Recipe
    reasons: Mapping[str, str]
    views: tuple[str, str]
    advice: str = ""

    def line(self) -> str:
        """The choices that matter most, for a log; training.json and the report have all, with reasons."""
        unused = {"epochs"} if self.recipe.minutes else set()
        named = [name for name in _IMPORTANT if name in self.reasons.keys() - unused]
        found = {name: getattr(self.recipe, name) for name in named}
        values = ", ".join(f"{name} {value}" for name, value in found.items() if value not in {0, NONE})
        chosen = f"chosen: {values}; " if values else ""
        return f"{chosen}choices and reasons ({len(self.reasons)} in all): training.json, report"

    def facts(self) -> dict[str, Any]:
        """As training.json holds it."""
        chosen = {
            name: {"value": getattr(self.recipe, name), "reason": why} for name, why in self.reasons.items()
        }
        views, why = self.views
        return {
            "chosen": {**chosen, "test_time_views": {"value": views, "reason": why}},
            "advice": self.advice,
        }


def measured(manifest: DatasetManifest) -> Measured:
    """What a dataset version's manifest says that matters here."""
    train = manifest.splits["train"]
    return Measured(
        task=manifest.task,
        shape=manifest.shape,
        images=train.count,
        per_class=train.per_class,
        validation=manifest.splits["validation"].count,
        sized="image_size" in manifest.source,
    )


def wanted_weights(data: Measured, recipe: Recipe) -> str:
    """The network whose pretrained weights would suit the images; empty if there is none."""
    name = constants.USUAL_NETWORK if recipe.model == AUTO else recipe.model
    is_known = name not in ARCHITECTURES and not is_own_function(name)
    is_open = recipe.pretrained == AUTO and not recipe.warm_start
    return name if is_open and is_known and not _against_pretrained(data) else ""


def _against_pretrained(data: Measured) -> str:
    """Why pretrained weights, which know photographs, would not help; empty if they would."""
    if data.shape[2] != 3:  # noqa: PLR2004 - red, green and blue
        return "gray images are unlike the photographs that pretrained weights know"
    if data.side <= constants.SIDES["cpu"]:
        return f"images of {data.side} pixels are smaller than what pretrained weights know"
    if data.images > constants.ENOUGH_PHOTOGRAPHS:
        return f"{data.images:,} images suffice for random weights"
    return ""


def choose(data: Measured, device: Device, recipe: Recipe) -> ChosenRecipe:
    """Choose all that a recipe leaves open."""
    builder = _RecipeBuilder(data, device, recipe)
    for decide in _DECISIONS:
        decide(builder)
    return ChosenRecipe(builder.recipe, builder.reasons, _views(builder), _advice(builder))


class _RecipeBuilder:
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
    def family(self) -> constants.Family:
        """Of the network, by its name; what a function of the user's own gives is not known."""
        name = self.recipe.model
        found = (family for start, family in constants.FAMILIES.items() if name.startswith(start))
        return constants.ATTENTION if is_own_function(name) else next(found, constants.RESIDUAL)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.recipe.epochs * -(-self.data.images // self.recipe.batch_size)


def _weights(builder: _RecipeBuilder) -> None:
    data, recipe = builder.data, builder.recipe
    if recipe.warm_start:
        builder.set("pretrained", NONE, f"the weights of {recipe.warm_start} are given")
    elif reason := _against_pretrained(data):
        builder.set("pretrained", NONE, reason)
    elif not data.weights:
        builder.set("pretrained", NONE, f"torchvision has no weights of {recipe.model}")
    else:
        builder.set("pretrained", "torchvision" if data.weights.found else NONE, data.weights.seen)


def _network(builder: _RecipeBuilder) -> None:
    data = builder.data
    if data.network:
        builder.set("model", data.network, "the network of the weights to start from")
    elif builder.recipe.has_pretrained:
        builder.set("model", constants.USUAL_NETWORK, "the smallest common network with pretrained weights")
    elif data.side < constants.FAST_CNN_SIDE:
        builder.set("model", "digits-cnn", f"images of {data.side} pixels need a small network")
    elif data.shape[2] == 1 and data.side <= constants.LENET_SIDE:
        builder.set("model", "lenet", f"gray images of {data.side} pixels need a small network")
    elif builder.device.kind == "cpu" and (few := _too_few_for_wide(builder)):
        builder.set("model", "fast-cnn-small", f"learns fast from random weights, {few}")
    else:
        builder.set("model", "fast-cnn", "learns fast from random weights at any image size")


def _too_few_for_wide(builder: _RecipeBuilder) -> str:
    """What is too little for the wide fast-cnn on a CPU; empty if nothing is."""
    data, minutes = builder.data, builder.recipe.minutes
    pixels = min(data.side, constants.SIDES["cpu"]) ** 2
    if data.images < constants.MANY_IMAGES:
        return f"{data.images:,} images are few"
    if 0 < 60 * minutes < constants.FEWEST_WIDE_PASSES * wide_seconds(data.images, pixels):
        return f"{minutes:g} minutes are few for {data.images:,} images"
    return ""


def _resolution(builder: _RecipeBuilder) -> None:
    data = builder.data
    device = builder.device.kind
    side = (constants.PRETRAINED_SIDES if builder.recipe.has_pretrained else constants.SIDES)[device]
    if data.network_side:
        seen = data.network_side if data.network_side < data.side else 0
        builder.set("resolution", seen, "the size of images that the weights to start from know")
    elif data.sized:
        builder.set("resolution", 0, f"images of {data.side} pixels were asked for")
    elif data.side <= side:
        builder.set("resolution", 0, f"images of {data.side} pixels are small enough")
    else:
        why = (
            "pretrained weights"
            if builder.recipe.has_pretrained
            else f"{data.images:,} images from random weights"
        )
        builder.set("resolution", side, f"detail beyond it costs more than it helps with {why} on {device}")


def _batch(builder: _RecipeBuilder) -> None:
    least = max(constants.SMALLEST_BATCH, builder.device.processes)
    size = 2 ** int(math.log2(max(least, builder.data.images / constants.STEPS_OF_A_PASS)))
    builder.set(
        "batch_size",
        min(max(size, least), max(constants.LARGEST_BATCH, least)),
        f"{builder.data.images:,} training images",
    )


def _optimizer(builder: _RecipeBuilder) -> None:
    family, data, network = builder.family, builder.data, builder.recipe.model
    builder.set("optimizer", "sgd" if builder.recipe.has_pretrained else family.optimizer, f"suits {network}")
    how, batch = builder.recipe.optimizer, builder.recipe.batch_size
    rate = family.rates[how] * (batch / family.batch) ** (family.power if how == "sgd" else 0.5)
    if builder.recipe.has_pretrained:
        rate *= constants.PRETRAINED_RATE
    builder.set("learning_rate", float(f"{rate:.2g}"), f"suits {how}, {network} and batches of {batch}")
    smooths = data.task == "multiclass" and not is_own_function(builder.recipe.loss)
    for name, value in family.values(how, smooths=smooths).items():
        builder.set(name, value, f"suits {how} and {network}")


def _epochs(builder: _RecipeBuilder) -> None:
    data, batch = builder.data, builder.recipe.batch_size
    height, width, _ = working_shape(data.shape, builder.recipe.resolution)
    epochs = epochs_for(
        data.images, height * width, batch, builder.device.kind, has_weights=builder.recipe.has_pretrained
    )
    steps = -(-data.images // batch)
    minutes = builder.recipe.minutes
    why = (
        f"not used: {minutes:g} minutes decide" if minutes else f"{epochs * steps:,} steps of {batch} images"
    )
    builder.set("epochs", epochs, why)
    least = constants.WARMUPS[builder.recipe.optimizer]
    share = min(0.5, max(least, constants.FEWEST_WARMUP_STEPS / builder.steps)) if least else 0.0
    builder.set(
        "warmup_fraction", round(share, 4), f"{round(share * builder.steps)} of {builder.steps:,} steps"
    )


def _images(builder: _RecipeBuilder) -> None:
    data, family = builder.data, builder.family
    gray = data.shape[2] == 1
    if data.side < constants.FAST_CNN_SIDE or (gray and data.side <= constants.LENET_SIDE):
        builder.set("augmentation", "shift", "small gray images, where a mirror image may be another class")
    elif gray:
        builder.set("augmentation", "shift", "gray images, where left and right may differ in meaning")
    else:
        builder.set("augmentation", "shift-alternating-flip", "color images, which look alike in a mirror")
    side = min(working_shape(data.shape, builder.recipe.resolution)[:2])
    grows = family.grows and side >= 2 * constants.FAST_CNN_SIDE
    builder.set(
        "initial_resolution",
        0.75 if grows else 1.0,
        "early steps need less detail" if grows else f"{builder.recipe.model} sees images of {side} pixels",
    )


def _balance(builder: _RecipeBuilder) -> None:
    ratio = builder.data.imbalance
    if is_own_function(builder.recipe.loss):
        builder.set("class_weights", "none", "the loss is your own")
    elif builder.data.task == "multiclass":
        chosen = "balanced" if ratio >= constants.IMBALANCE else "none"
        why = f"the largest class has {ratio:.3g} times the images of the smallest"
        builder.set("class_weights", chosen, why)
    else:
        builder.set("class_weights", "none", "the ranking of images by a label does not need them")


def _selection(builder: _RecipeBuilder) -> None:
    seen, patience = builder.data.validation, builder.recipe.patience
    if patience:
        builder.set("model_selection", "best", "patience may stop the training after it")
    elif seen >= (least := constants.SELECTION_IMAGES):
        builder.set("model_selection", "best", f"{seen:,} validation images can tell epochs apart")
    else:
        why = f"{seen} validation images, fewer than {least}, cannot tell epochs apart"
        builder.set("model_selection", "last", why)
    decay = 0.0 if builder.recipe.model_selection == "best" else round(max(0.0, 1 - 20 / builder.steps), 4)
    builder.set(
        "averaging_decay",
        min(decay, 0.99),
        "no average beside the best epoch" if not decay else "an average varies less than the last weights",
    )


def _views(builder: _RecipeBuilder) -> tuple[str, str]:
    if builder.recipe.augmentation in AUGMENTATIONS and "flip" in builder.recipe.augmentation:
        return "flips", f"trained on mirror images, too (augmentation {builder.recipe.augmentation})"
    return "plain", "not trained on mirror images"


def _advice(builder: _RecipeBuilder) -> str:
    if _against_pretrained(builder.data) or builder.recipe.has_pretrained or builder.recipe.warm_start:
        return ""
    return (
        f"trained from random weights; with {builder.data.images:,} photographs, pretrained weights usually "
        "give a clearly better model: --pretrained with torchvision on a connected machine, or with a file"
    )


def wide_seconds(images: int, pixels: int) -> float:
    """Seconds of a pass over images of so many pixels in the wide fast-cnn."""
    return images * pixels * constants.WIDE_SECONDS


def epochs_for(images: int, pixels: int, batch: int, device: str, *, has_weights: bool) -> int:
    """The number of epochs that suits a set.

    40 images          40 passes    further ones cost time and gain nothing
    800 photographs    22 passes    a minute on two cores
    2,400 images       30 passes    more over fewer images, fewer over more, by a power of their ratio
    1,000,000 images    3 passes    more images teach more than more passes
    """
    usual: float = constants.USUAL_PASSES * (constants.USUAL_IMAGES / images) ** constants.PASSES_POWER
    passes = min(usual, constants.MOST_PASSES)
    if has_weights:
        passes = min(passes / 2, constants.PRETRAINED_PASSES[device])
    elif device == "cpu" and images < constants.MANY_IMAGES:
        narrow = wide_seconds(images, pixels) / 3
        passes = min(passes, max(constants.FEWEST_SOON_PASSES, constants.SOON_SECONDS / narrow))
    fewest = constants.FEWEST_STEPS / -(-images // batch)
    return max(
        constants.FEWEST_EPOCHS, math.ceil(min(max(passes, fewest), constants.MOST_IMAGES_SEEN / images))
    )


_IMPORTANT = ("model", "pretrained", "resolution", "epochs", "batch_size", "learning_rate")

_DECISIONS = (*(_weights, _network, _resolution, _batch, _optimizer, _epochs, _images, _balance, _selection),)
"""In an order in which each finds what it needs."""
