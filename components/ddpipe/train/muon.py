"""Muon: momentum whose updates of weight matrices are made orthogonal, so that no direction is left behind.

Convolutions count as matrices, one row for each output. All other weights (biases, normalization, embeddings,
layer scales, the last layer) are updated as by Adam, at `REST` of the learning rate.

Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, with the normalized
weights of its use on CIFAR-10. `torch.optim.Muon` takes no convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

REST = 1 / 8
"""Share of the learning rate for all that is no hidden matrix."""

_ITERATIONS = 3
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration: they lift small singular values fastest, to about 1."""

_BETAS = (0.8, 0.95)
_TINY = 1e-8


class Muon(Optimizer):
    """Muon for hidden matrices, Adam for the rest.

    The weights of a matrix are scaled to one length per row before every update: normalization layers undo
    scales anyway, and so the learning rate is the relative size of an update.
    """

    def __init__(self, model: nn.Module, *, lr: float, momentum: float) -> None:
        """Optimise the parameters of a model."""
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
                    state = self.state[weights]
                    _update_orthogonally(weights, weights.grad, state, group["lr"], group["momentum"])
                else:
                    _update_as_adam(weights, weights.grad, self.state[weights], group["lr"] * REST)


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of linear maps between features, shape (outputs, ...): linear, convolution, attention.

    Other parameters may have two or more dimensions, too, without being maps: the layer scales of ConvNeXt,
    position embeddings and class tokens. Their size means something, and rows of one length would destroy it.
    """
    return [
        weights
        for module in model.modules()
        for name, weights in module.named_parameters(recurse=False)
        if (name == "weight" and isinstance(module, (nn.Linear, _ConvNd)))
        or (name.endswith("proj_weight") and isinstance(module, nn.MultiheadAttention))
    ]


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix, shape (rows, columns), with its singular values brought near 1 (0.5 to 1.5).

    By Newton-Schulz iterations in bfloat16; the result has the dtype of the matrix.
    """
    first, third, fifth = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found = (matrix.T if tall else matrix).bfloat16()
    found = found / found.norm().clamp(min=_TINY)
    for _ in range(_ITERATIONS):
        square = found @ found.T
        found = first * found + (third * square + fifth * square @ square) @ found
    orthogonalized: Tensor = (found.T if tall else found).type_as(matrix)
    return orthogonalized


def _update_orthogonally(
    weights: Tensor, gradient: Tensor, state: dict[str, Any], rate: float, momentum: float
) -> None:
    if not state:
        state["momentum"] = torch.zeros_like(weights)
    state["momentum"].mul_(momentum).add_(gradient)
    update = gradient.add(state["momentum"], alpha=momentum)
    weights.mul_(len(weights) ** 0.5 / weights.norm().clamp(min=_TINY))
    weights.sub_(orthogonal(update.flatten(1)).view_as(weights), alpha=rate)


def _update_as_adam(weights: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
    """Source: Kingma and Ba, ICLR 2015."""
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}
    state["step"] += 1
    of_mean, of_square = _BETAS
    mean = state["mean"].lerp_(gradient, 1 - of_mean) / (1 - of_mean ** state["step"])
    square = state["square"].lerp_(gradient.square(), 1 - of_square) / (1 - of_square ** state["step"])
    weights.sub_(mean / (square.sqrt() + _TINY), alpha=rate)
