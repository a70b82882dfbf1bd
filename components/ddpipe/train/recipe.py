"""Hyperparameters: one frozen dataclass, the same for the command line, the pipelines and the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ddpipe.model import ModelNames
from ddpipe.parameters import Between, OneOf, Parameters, parameter
from ddpipe.train.augmentation import AUGMENTATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Parameters):
    """How to train. Equal recipes give equal models."""

    what: ClassVar[str] = "training cannot start"
    heading: ClassVar[str] = "Hyperparameters"

    model: str = parameter(
        "digits-cnn", f"Network to train: {ModelNames()} (auto chooses by image size).", ModelNames()
    )
    pretrained: str = parameter(
        "",
        "Weights to start from: torchvision (its own, downloaded), or path or s3:// address of a file (state "
        "dict or safetensors); empty starts from random ones.",
    )
    epochs: int = parameter(15, "Number of epochs.", Between(1, 100_000))
    batch_size: int = parameter(
        64, "Samples in one step, over all processes together.", Between(1, 1_000_000)
    )
    learning_rate: float = parameter(
        0.1,
        "Peak learning rate: reached after warm-up, then falling along a cosine to 0.",
        Between(0, 10, open_low=True),
    )
    momentum: float = parameter(
        0.9, "Nesterov momentum of SGD; 0 disables it.", Between(0, 1, open_high=True)
    )
    weight_decay: float = parameter(5e-4, "L2 penalty on all weights.", Between(0, 1))
    warmup_fraction: float = parameter(
        0.1, "Share of all steps in which the learning rate rises to its peak.", Between(0, 1, open_high=True)
    )
    label_smoothing: float = parameter(
        0.0, "Share of the target that is spread evenly over all classes.", Between(0, 1, open_high=True)
    )
    class_weights: str = parameter(
        "none",
        "Weight of each class, or of each label where present: none, or balanced by inverse frequency.",
        OneOf(("none", "balanced")),
    )
    augmentation: str = parameter(
        "none", f"Random changes to training images: {', '.join(AUGMENTATIONS)}.", OneOf(AUGMENTATIONS)
    )
    precision: str = parameter(
        "fp32",
        "Arithmetic of the network: fp32, or bf16 (mixed, with fp32 weights).",
        OneOf(("fp32", "bf16")),
    )
    strategy: str = parameter(
        "auto",
        "How processes share the training: ddp (each has the whole model), fsdp (each has a share of every "
        "weight, for models too large for one device), dp (one process for all GPUs of a machine; ddp is "
        "faster: dp copies the weights at every step and loads GPU 0 most), single, or auto (ddp, or single "
        "for one process).",
        OneOf(("auto", "single", "dp", "ddp", "fsdp")),
    )
    sync_batch_norm: bool = parameter(
        default=False,
        help="Whether batch normalisation uses statistics of the whole batch, not of each process's share.",
    )
    seed: int = parameter(0, "Seed for initial weights and sample order.", Between(0, 2**32 - 1))
    checkpoint_minutes: float = parameter(
        5.0,
        "Longest time between two checkpoints; every epoch ends with one anyway.",
        Between(0, 1440, open_low=True),
        compare=False,
    )

    def shaping(self) -> dict[str, Any]:
        """Names and values of all that shapes the model."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.compare}
