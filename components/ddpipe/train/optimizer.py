"""The optimizer of a recipe."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, Optimizer

from ddpipe.train.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The recipe's optimizer over all parameters of the model."""
    return SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
    )


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this learning rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
