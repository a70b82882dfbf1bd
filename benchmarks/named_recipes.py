"""Recipes by name, each complete: it means the same on any data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpipe.train.constants import FAST, WARMUPS
from ddpipe.train.recipe import AT_FIRST

_FAST: Mapping[str, Any] = {
    **AT_FIRST,
    "optimizer": "muon",
    "learning_rate": FAST.rates["muon"],
    "warmup_fraction": WARMUPS["muon"],
    **FAST.values("muon", smooths=True),
    "batch_size": 500,
    "augmentation": "shift-alternating-flip",
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    # The small network digits-cnn at full image size, SGD with batches of 64
    "plain": AT_FIRST,
    # The training loop of many tutorials
    "documents": {
        **AT_FIRST,
        "model": "simple-cnn",
        "epochs": 10,
        "learning_rate": 0.01,
        "schedule": "constant",
        "warmup_fraction": 0.0,
        "weight_decay": 0.0,
        "precision": "fp32",
    },
    # A first result on images of about 32x32 pixels, and an accurate network for them
    "quick-32": {**_FAST, "model": "fast-cnn-small", "epochs": 1, "initial_resolution": 0.5},
    "fast-32": {**_FAST, "model": "fast-cnn", "epochs": 12, "initial_resolution": 0.75},
}
