"""The named choices of a recipe, each declared once; this module needs no torch.

Schedules and augmentations are complete here. The other names are enumerations, and the code that implements
them matches on their members: mypy rejects a member without an implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

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
    """What happens at an operation without a deterministic kernel, implemented by determinism.py."""

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
    """What happens to an image.

    Attributes:
        shift: It moves by up to this part of its sides; what is missing is its mirror image.
        flip: "random": every second one is mirrored from left to right. "alternating": one that was mirrored
            in an epoch is not in the next (Jordan, arXiv:2404.00498, section 3.6). "none".
        cutout: A square of this part of its sides becomes gray.
        zoom: What is seen is a rectangle of at least this part of its area, stretched to the old shape
            ("random resized crop": Szegedy et al., CVPR 2015, section 6).
        light: Brightness and contrast change by up to this part.
    """

    shift: float = 0.0
    flip: str = "none"
    cutout: float = 0.0
    zoom: float = 1.0
    light: float = 0.0


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": Augmentation(),
    "shift": Augmentation(shift=1 / 8),
    "shift-flip": Augmentation(shift=1 / 8, flip="random"),
    "shift-flip-cutout": Augmentation(shift=1 / 8, flip="random", cutout=1 / 4),
    "shift-alternating-flip": Augmentation(shift=1 / 16, flip="alternating"),
    "photo": Augmentation(flip="random", zoom=0.35, light=0.2),
}
"""By the names of the recipe."""
