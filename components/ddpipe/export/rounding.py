"""How far two correct float32 computations of the same logits may lie apart."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

SHARE = 1e-4
"""Of the largest logit: a hundred times what float32 usually rounds away."""

UNIT = 2.0**-24
"""Half the distance of 1 from the next float32: the most that one operation rounds away, relatively."""


def tolerance(model: nn.Module, images: Tensor, largest: float) -> float:
    """How far a logit may lie from the evaluated one, in logits.

    A share of the largest logit, but not less than what rounding alone explains. A network that has learned
    little adds up large terms to small logits, and the terms' rounding errors stay: adding up n terms in
    another order moves the sum by at most about sqrt(n) units of the sum of their magnitudes, and every layer
    of width n adds as much to the relative error of its outputs.

    Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM Journal on
    Scientific Computing 41 (2019).

    Args:
        model: In evaluation mode, on the CPU.
        images: Some samples, as the model takes them: uint8, shape (n, height, width, channels).
        largest: Magnitude of the largest logit that was evaluated.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    roundings = sum(math.sqrt(layer.weight[0].numel()) for layer in layers)
    return max(SHARE * largest, UNIT * roundings * _largest_sum(model, layers, images))


def _largest_sum(model: nn.Module, layers: list[nn.Linear | nn.Conv2d], images: Tensor) -> float:
    """The largest sum of magnitudes that the last of these layers adds up to a logit."""
    calls: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], _output: Tensor) -> None:
        calls[:] = [(layer, inputs[0])]

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return max((_sum_of_magnitudes(layer, inputs) for layer, inputs in calls), default=0.0)


def _sum_of_magnitudes(layer: nn.Module, inputs: Tensor) -> float:
    positive = copy.deepcopy(layer)
    with torch.no_grad():
        for weights in positive.parameters():
            weights.abs_()
        return float(positive(inputs.abs()).max())
