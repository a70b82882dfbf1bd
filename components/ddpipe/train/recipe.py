"""Hyperparameters: one frozen dataclass, the same for the command line, the pipelines and the checkpoint.

The names that a hyperparameter can have are declared here, too, and what suits each family of networks.
Schedules and augmentations are complete; the others are enumerations, and the code that implements them
matches on their members: mypy rejects a member without an implementation. Nothing here needs torch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from ddpipe.model import ModelNames, OneOfOrOwn, is_own_function
from ddpipe.parameters import AUTO, Between, OneOf, OrAuto, Parameters, Typical, declared, parameter

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda _progress: 1.0,
}
"""Share of the peak learning rate after the warm-up, by name: a function of the progress from 0 to 1.

Source of the cosine: Loshchilov and Hutter, SGDR, ICLR 2017, without restarts.
"""


class Optimizers(StrEnum):
    """Optimizers, built by optimizer.py."""

    SGD = "sgd"
    ADAMW = "adamw"
    MUON = "muon"


class Strategies(StrEnum):
    """How processes share a training, implemented by strategies.py."""

    AUTO = "auto"
    SINGLE = "single"
    DP = "dp"
    DDP = "ddp"
    FSDP = "fsdp"


class Determinism(StrEnum):
    """What happens at an operation without a deterministic kernel, implemented by step.py."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"


class Precision(StrEnum):
    """Numeric precision of the network, implemented by step.py."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What happens to an image."""

    shift: float = 0.0  # it moves by up to this part of its sides; what is missing is its mirror image
    # "random": every second one is mirrored from left to right. "alternating": one that was mirrored in an
    # epoch is not in the next (Jordan, arXiv:2404.00498, section 3.6). "none".
    flip: str = "none"
    cutout: float = 0.0  # a square of this part of its sides becomes gray
    # What is seen is a rectangle of at least this part of its area, stretched to the old shape ("random
    # resized crop": Szegedy et al., CVPR 2015, section 6)
    zoom: float = 1.0
    light: float = 0.0  # brightness and contrast change by up to this part


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": Augmentation(),
    "shift": Augmentation(shift=1 / 8),
    "shift-flip": Augmentation(shift=1 / 8, flip="random"),
    "shift-flip-cutout": Augmentation(shift=1 / 8, flip="random", cutout=1 / 4),
    "shift-alternating-flip": Augmentation(shift=1 / 16, flip="alternating"),
    "photo": Augmentation(flip="random", zoom=0.35, light=0.2),
}
"""By the names of the recipe."""

CROSS_ENTROPY = "cross-entropy"

NONE = "none"  # in place of weights: random ones
LATEST = "latest"  # in place of an address: the last model of the same dataset and network among the runs

_DECIDED_LATER = ("precision", "deterministic", "strategy")
"""What `auto` means for these is decided where they are used; the data choose all others."""

FORMER: Mapping[str, Any] = {
    "accumulation_steps": 1,
    "mixing": "none",
    "decay_biases": True,
    "mixing_alpha": 1.0,
    "full_resolution_from": 0.5,
    "frozen_epochs": 0,
}
"""Former hyperparameters, which stored recipes still name, and the value that each now has for good."""

_WITHOUT_EFFECT = ("keep_checkpoints", "node_hour_price")  # others, which never shaped a model

AT_FIRST: Mapping[str, Any] = {
    "pretrained": NONE,
    "model": "digits-cnn",
    "resolution": 0,
    "epochs": 15,
    "batch_size": 64,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "schedule": "cosine",
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "warmup_fraction": 0.1,
    "label_smoothing": 0.0,
    "class_weights": "none",
    "augmentation": "none",
    "initial_resolution": 1.0,
    "averaging_decay": 0.0,
}
"""What a stored recipe means that does not name a hyperparameter: it was declared later."""

_ONCE_AUTO = -1

_log = logging.getLogger(__name__)


OWN = ("model", "loss", "augmentation")  # hyperparameters that may name a function of the user's own


def own_functions(values: Mapping[str, Any]) -> dict[str, str]:
    """The functions of the user's own that a recipe names: a file never decides that they are imported."""
    return {name: values[name] for name in OWN if is_own_function(str(values.get(name, "")))}


def as_today(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored recipe in today's words; a former name stays only where its value shaped the model."""
    numbers = {item.name for item in declared(Recipe) if item.may_be_auto}
    return {"loss": CROSS_ENTROPY} | {  # which was the only one before it had a name
        name: AUTO if name in numbers and value == _ONCE_AUTO else value
        for name, value in stored.items()
        if name not in _WITHOUT_EFFECT and (name not in FORMER or value != FORMER[name])
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Parameters):
    """How to train. Equal recipes give equal models."""

    what: ClassVar[str] = "training cannot start"
    heading: ClassVar[str] = "Hyperparameters"
    others: ClassVar[str] = "train_options"

    model: str = parameter(
        AUTO,
        f"Network to train: {ModelNames()} (auto chooses by image size, number of images and device).",
        ModelNames(),
        form="train_model",
    )
    pretrained: str = parameter(
        AUTO,
        "Initial weights: torchvision (its own, downloaded once), the URI of a state dict or safetensors "
        "file, none (random), or auto (torchvision's for photographs, if they are cached or can be "
        "downloaded).",
    )
    resolution: int = parameter(
        AUTO,
        "Shorter side in pixels to which larger images are reduced for training, and so for the model; 0 "
        f"keeps their size, {AUTO} chooses by number of images and device.",
        OrAuto(Between(0, 4096)),
    )
    epochs: int = parameter(
        AUTO,
        f"Number of epochs; {AUTO} chooses by number of images, so that small sets get enough steps.",
        OrAuto(Between(1, 100_000)),
        form="train_epochs",
    )
    minutes: float = parameter(
        0.0,
        "Minutes that the whole run may take, evaluation and export included: the number of epochs follows "
        "from what the first steps take on this machine; 0 means no limit.",
        Between(0, 100_000),
        form="train_minutes",
    )
    batch_size: int = parameter(
        AUTO,
        f"Samples per step, over all processes; {AUTO} chooses by number of images.",
        OrAuto(Between(1, 1_000_000)),
        typical=Typical(16, 512, log=True),
    )
    optimizer: str = parameter(
        AUTO,
        "Optimizer: sgd (with Nesterov momentum), adamw, muon (orthogonal updates, no weight decay), or auto "
        "(what suits the network).",
        OneOf((AUTO, *map(str, Optimizers))),
    )
    learning_rate: float = parameter(
        AUTO,
        "Peak learning rate, reached at the end of the warm-up; "
        f"{AUTO} chooses by network, optimizer and batch size.",
        OrAuto(Between(0, 10, open_low=True)),
        form="train_learning_rate",
        typical=Typical(0.001, 1, log=True),
    )
    schedule: str = parameter(
        AUTO,
        f"Learning rate after the warm-up: {', '.join(SCHEDULES)}, or {AUTO}.",
        OneOf((AUTO, *SCHEDULES)),
    )
    momentum: float = parameter(
        AUTO,
        f"Momentum of SGD and Muon, beta1 of AdamW; 0 disables it, {AUTO} chooses by optimizer.",
        OrAuto(Between(0, 1, open_high=True)),
        typical=Typical(0.5, 0.99),
    )
    weight_decay: float = parameter(
        AUTO,
        f"Weight decay: an L2 penalty for SGD, decoupled for AdamW; {AUTO} chooses by optimizer.",
        OrAuto(Between(0, 1)),
        typical=Typical(1e-6, 1e-2, log=True),
    )
    clip_norm: float = parameter(
        0.0,
        "Maximum norm of the gradient; larger gradients are scaled down; 0 disables clipping.",
        Between(0, 1e6),
    )
    warmup_fraction: float = parameter(
        AUTO,
        "Fraction of all steps over which the learning rate rises to its peak; "
        f"{AUTO} chooses by optimizer and number of steps.",
        OrAuto(Between(0, 1, open_high=True)),
        typical=Typical(0, 0.3),
    )
    label_smoothing: float = parameter(
        AUTO,
        f"Fraction of the target that is spread evenly over all classes; {AUTO} chooses by network and task.",
        OrAuto(Between(0, 1, open_high=True)),
        typical=Typical(0, 0.2),
    )
    class_weights: str = parameter(
        AUTO,
        "Weight of each class, or of each label where present: none, balanced by inverse frequency, or auto "
        "(balanced if the classes differ much in size).",
        OneOf((AUTO, "none", "balanced")),
    )
    augmentation: str = parameter(
        AUTO,
        f"Random augmentation of training images: {', '.join(AUGMENTATIONS)}, auto (by kind of image), or a "
        "function(images, labels) of your own as package.module:function.",
        OneOfOrOwn((AUTO, *AUGMENTATIONS)),
    )
    loss: str = parameter(
        CROSS_ENTROPY,
        f"What training minimizes: {CROSS_ENTROPY} (for several labels per image, of each label), or a "
        "function(logits, labels) of your own as package.module:function.",
        OneOfOrOwn((CROSS_ENTROPY,)),
    )
    initial_resolution: float = parameter(
        AUTO,
        "Initial image size, as a fraction of the full size; 1 means full size from the start, "
        f"{AUTO} chooses by network and image size.",
        OrAuto(Between(0, 1, open_low=True)),
        typical=Typical(0.5, 1),
    )
    averaging_decay: float = parameter(
        AUTO,
        "Decay of the moving average of the weights, which is evaluated instead of them; 0 disables "
        f"averaging, {AUTO} chooses by number of steps.",
        OrAuto(Between(0, 1, open_high=True)),
        typical=Typical(0.9, 0.999),
    )
    patience: int = parameter(
        0,
        "Epochs without a better validation metric after which training stops; 0 disables early stopping.",
        Between(0, 100_000),
    )
    precision: str = parameter(
        AUTO,
        "Numeric precision: fp32, bf16 (mixed, with fp32 weights), fp16 (mixed, with loss scaling, for GPUs "
        "without bf16 such as V100 and T4), or auto (bf16 where it is fast).",
        OneOf(tuple(map(str, Precision))),
    )
    compile: bool = parameter(
        default=False,
        help="Whether to compile the network; only on a GPU, and worthwhile only for long trainings.",
    )
    deterministic: str = parameter(
        AUTO,
        "Whether equal trainings give equal bits: true rejects networks with operations that have no "
        "deterministic kernel on a GPU, auto warns that a resumed training then differs in bits from an "
        "uninterrupted one, false does not ask for deterministic kernels.",
        OneOf(tuple(map(str, Determinism))),
    )
    strategy: str = parameter(
        AUTO,
        "How processes share the training: ddp (each holds the whole model), fsdp (each holds a shard of "
        "every weight, for models too large for one device), dp (one process drives all GPUs of a "
        "machine; slower than ddp), single, or auto (ddp, or single for one process).",
        OneOf(tuple(map(str, Strategies))),
    )
    sync_batch_norm: bool = parameter(
        default=False,
        help="Whether batch normalization uses statistics of the whole batch, not of each process's share.",
    )
    seed: int = parameter(0, "Seed for initial weights and sample order.", Between(0, 2**32 - 1))
    warm_start: str = parameter(
        "",
        "Model package whose weights to start from: its URI, or latest for that of the last run with the "
        "same dataset, classes, split rule and network, if there is one (default: none).",
    )
    model_selection: str = parameter(
        AUTO,
        "Which epoch's weights become the trained model: last, best (by the validation metric), or auto "
        "(best if the validation split is large enough, or patience can stop the training early; else last).",
        OneOf((AUTO, "last", "best")),
    )
    checkpoint_minutes: float = parameter(
        5.0,
        "Maximum time between checkpoints, in minutes; every epoch also ends with one.",
        Between(0, 1440, open_low=True),
        compare=False,
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """As of any group; also a recipe that an earlier version stored."""
        values = as_today(values)
        for name in values.keys() & FORMER.keys():
            _log.warning(
                "%s %s of a stored recipe is not used: it is always %s", name, values[name], FORMER[name]
            )
        # With slots, the decorator makes another class, which super() without arguments would not find.
        return super(Recipe, cls).from_dict({name: values[name] for name in values if name not in FORMER})

    def conflicts(self) -> Iterator[str]:
        """What is wrong with values that are valid one by one."""
        if self.optimizer == "muon" and self.strategy == "fsdp":
            yield "`optimizer` muon cannot be used with `strategy` fsdp: it needs whole weights"
        if self.precision == "fp16" and self.strategy == "fsdp":
            yield "`precision` fp16 cannot be used with `strategy` fsdp, which needs bf16 or fp32"
        if self.has_pretrained and self.warm_start not in {"", LATEST}:
            yield "`pretrained` and `warm_start` both name weights to start from; give one of them"
        weighted = self.label_smoothing not in {AUTO, 0} or self.class_weights == "balanced"
        if weighted and is_own_function(self.loss):
            yield "`label_smoothing` and `class_weights` are those of cross-entropy, and `loss` is your own"

    @property
    def has_pretrained(self) -> bool:
        """Whether it names pretrained weights."""
        return self.pretrained not in {"", AUTO, NONE}

    def automatic(self) -> set[str]:
        """The names whose values are to be chosen by the data (auto.py)."""
        return {item.name for item in fields(self) if getattr(self, item.name) == AUTO} - {*_DECIDED_LATER}

    def shaping(self) -> dict[str, Any]:
        """Names and values of all that shapes the model."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.compare}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingRecipe(Parameters):
    """The values that a recipe starts from."""

    what: ClassVar[str] = Recipe.what
    heading: ClassVar[str] = Recipe.heading
    others: ClassVar[str] = Recipe.others

    recipe: str = parameter(
        "",
        "Recipe to start from: a study (its folder, whose best recipe is used), or a JSON object of "
        "hyperparameters; those that are given override it.",
        form="train_recipe",
    )
