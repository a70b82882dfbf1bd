"""How long the exported model takes for batches of several sizes, next to PyTorch eager."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ddpipe.model.scoring import Answer, batch_size_for

BATCHES = (1, 8, 64)
"""Sizes that are timed; large images are timed in smaller batches."""

RUNS, SECONDS = 10, 0.25
"""Timed runs of one model and size: so many, or as many as begin in this time."""


def speed_of(models: Mapping[str, Answer], images: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Median milliseconds of a batch for each model and size, timed in turns.

    Args:
        models: By name.
        images: At least one, shape (n, H, W, C); repeated to fill a batch.
    """
    height, width, channels = images.shape[1:]
    sizes = dict.fromkeys(batch_size_for((height, width, channels), size) for size in BATCHES)
    batches = []
    for size in sizes:
        batch = np.ascontiguousarray(np.resize(images, (size, height, width, channels)))
        batches.append({"batch": size, **_timed(models, batch)})
    return {"threads": torch.get_num_threads(), "batches": batches}


def _timed(models: Mapping[str, Answer], batch: npt.NDArray[np.uint8]) -> dict[str, float]:
    for model in models.values():
        model(batch)  # the first run allocates
    taken: dict[str, list[float]] = {name: [] for name in models}
    until = time.perf_counter() + SECONDS * len(models)
    for _ in range(RUNS):
        for name, model in models.items():
            started = time.perf_counter()
            model(batch)
            taken[name].append(1000 * (time.perf_counter() - started))
        if time.perf_counter() > until:
            break
    return {name: round(median(times), 3) for name, times in taken.items()}
