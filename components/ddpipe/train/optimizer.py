"""How weights change: the optimizer, the learning rate of each step, the average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from ddpipe.train.choices import SCHEDULES, Optimizers
from ddpipe.train.muon import Muon
from ddpipe.train.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module, *, fused: bool) -> Optimizer:
    """The recipe's optimizer over all parameters of the model that can be trained."""
    rate, momentum = recipe.learning_rate, recipe.momentum
    match Optimizers(recipe.optimizer):
        case Optimizers.MUON:
            return Muon(model, lr=rate, momentum=momentum)
        case Optimizers.ADAMW:
            return AdamW(_groups(recipe, model), lr=rate, betas=(momentum, 0.999), fused=fused)
        case Optimizers.SGD:
            return SGD(
                _groups(recipe, model),
                lr=rate,
                momentum=momentum,
                nesterov=momentum > 0,
                # the fused kernel needs momentum for all weights or for none; frozen ones have none
                fused=fused and not recipe.frozen_epochs,
            )
        case other:
            assert_never(other)


def _groups(recipe: Recipe, model: nn.Module) -> list[dict[str, object]]:
    """The weights that are trained: matrices, then biases and the scales of normalization layers."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    # Both decay alike; stored states of optimizers have them in this order, in two groups.
    matrices = [one for one in parameters if one.ndim > 1]
    vectors = [one for one in parameters if one.ndim <= 1]
    return [{"params": group, "weight_decay": recipe.weight_decay} for group in (matrices, vectors)]


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this learning rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of one step: linear during the warm-up, then by the schedule.

    It is a pure function of the recipe, so that a checkpoint need not hold it.
    """
    warmup = round(recipe.warmup_fraction * steps)
    if step < warmup:
        return recipe.learning_rate * ((step + 1) / warmup)
    return recipe.learning_rate * SCHEDULES[recipe.schedule]((step - warmup) / (steps - warmup))


Weights = dict[str, Tensor]


class WeightAverage:
    """An exponential moving average of all floating-point weights and buffers of a model.

    It is evaluated and exported in place of the last weights.

    Source: Polyak and Juditsky, SIAM J. Control Optim. 30(4), 1992; the warm-up is that of TensorFlow's
    ExponentialMovingAverage, so that the first weights are soon forgotten.

    Attributes:
        weights: By their names in the model's state dict.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the present weights; in the long run a step's share is `1 - decay`."""
        self._model, self._decay = model, decay
        self.weights = {name: value.clone() for name, value in self._current().items()}

    def _current(self) -> Weights:
        return {name: value for name, value in self._model.state_dict().items() if value.is_floating_point()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after a step, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, value in self._current().items():
            self.weights[name].lerp_(value, 1 - decay)

    def load(self, weights: Weights) -> None:
        """Resume from these averages."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside of this block."""
        current = self._current()
        kept = {name: value.clone() for name, value in current.items()}
        for name, value in current.items():
            value.copy_(self.weights[name])
        try:
            yield
        finally:
            # Read again, as a sharded model may have replaced its weights since.
            for name, value in self._current().items():
                value.copy_(kept[name])
