"""How weights change: the optimizer, the learning rate of each step, the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import SGD, AdamW, Optimizer

from ddpipe.train.recipe import SCHEDULES, Optimizers, Recipe


def build_optimizer(
    recipe: Recipe, model: nn.Module, *, fused: bool, muon_dtype: torch.dtype = torch.float32
) -> Optimizer:
    """The recipe's optimizer over all parameters of the model that can be trained."""
    rate, momentum = recipe.learning_rate, recipe.momentum
    match Optimizers(recipe.optimizer):
        case Optimizers.MUON:
            return Muon(model, lr=rate, momentum=momentum, dtype=muon_dtype)
        case Optimizers.ADAMW:
            return AdamW(_groups(recipe, model), lr=rate, betas=(momentum, 0.999), fused=fused)
        case Optimizers.SGD:
            return SGD(
                _groups(recipe, model),
                lr=rate,
                momentum=momentum,
                nesterov=momentum > 0,
                fused=fused,
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
    """The learning rate of one step: a pure function of the recipe, so that a checkpoint need not hold it."""
    warmup = round(recipe.warmup_fraction * steps)
    if step < warmup:
        return recipe.learning_rate * ((step + 1) / warmup)
    return recipe.learning_rate * SCHEDULES[recipe.schedule]((step - warmup) / (steps - warmup))


Weights = dict[str, Tensor]


class WeightAverage:
    """A moving average of all weights and buffers, evaluated instead of them, with TensorFlow's warm-up."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the present weights; in the long run a step's share is `1 - decay`."""
        self._model, self._decay = model, decay
        self.weights = {name: value.clone() for name, value in self._current().items()}

    def _current(self) -> Weights:
        return {name: value for name, value in self._model.state_dict().items() if value.is_floating_point()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after a step, counted from 0."""
        # Early steps count less: the first weights are random, and would stay in the average for long.
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


REST = 1 / 8  # share of the learning rate for all that is no hidden matrix

_ITERATIONS = 3

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Newton-Schulz: they lift small singular values fastest

_BETAS = (0.8, 0.95)

_TINY = 1e-8


class Muon(Optimizer):
    """Momentum whose updates of weight matrices are made orthogonal, so that no direction is left behind.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; `torch.optim.Muon`
    takes no convolutions, which count as matrices here. All other weights are updated as by Adam, at `REST`
    of the learning rate. A matrix's rows are scaled to one length before every update: normalization layers
    undo scales anyway, and so the learning rate is the relative size of an update.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, momentum: float, dtype: torch.dtype = torch.float32
    ) -> None:
        """Optimise the parameters of a model; updates are made orthogonal in `dtype`."""
        self._dtype = dtype
        learned = [weights for weights in model.parameters() if weights.requires_grad]
        matrices = [weights for weights in hidden_matrices(model) if weights.requires_grad][:-1]
        hidden = set(map(id, matrices))
        rest = [weights for weights in learned if id(weights) not in hidden]
        groups = [{"params": matrices, "hidden": True}, {"params": rest, "hidden": False}]
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        if closure is not None:
            raise ValueError("Muon computes no loss of its own: closure must be None")
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                if group["hidden"]:
                    self._update_orthogonally(weights, weights.grad, group["lr"], group["momentum"])
                else:
                    _update_as_adam(weights, weights.grad, self.state[weights], group["lr"] * REST)

    def _update_orthogonally(self, weights: Tensor, gradient: Tensor, rate: float, momentum: float) -> None:
        state = self.state[weights]
        if not state:
            state["momentum"] = torch.zeros_like(weights)
        state["momentum"].mul_(momentum).add_(gradient)
        update = gradient.add(state["momentum"], alpha=momentum)
        weights.mul_(len(weights) ** 0.5 / weights.norm().clamp(min=_TINY))
        weights.sub_(orthogonal(update.flatten(1), self._dtype).view_as(weights), alpha=rate)


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of linear maps, shape (outputs, ...): not layer scales, embeddings and class tokens."""
    return [
        weights
        for module in model.modules()
        for name, weights in module.named_parameters(recurse=False)
        if (name == "weight" and isinstance(module, (nn.Linear, _ConvNd)))
        or (name.endswith("proj_weight") and isinstance(module, nn.MultiheadAttention))
    ]


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix, shape (rows, columns), with its singular values near 1, by Newton-Schulz iterations."""
    first, third, fifth = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found = (matrix.T if tall else matrix).to(dtype)
    # The iteration needs singular values of at most 1; the norm is at least the largest of them.
    found = found / found.norm().clamp(min=_TINY)
    for _ in range(_ITERATIONS):
        square = found @ found.T
        found = first * found + (third * square + fifth * square @ square) @ found
    orthogonalized: Tensor = (found.T if tall else found).type_as(matrix)
    return orthogonalized


def _update_as_adam(weights: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
    """Source: Kingma and Ba, ICLR 2015."""
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}
    state["step"] += 1
    of_mean, of_square = _BETAS
    mean = state["mean"].lerp_(gradient, 1 - of_mean) / (1 - of_mean ** state["step"])
    square = state["square"].lerp_(gradient.square(), 1 - of_square) / (1 - of_square ** state["step"])
    weights.sub_(mean / (square.sqrt() + _TINY), alpha=rate)
