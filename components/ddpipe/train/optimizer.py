"""The optimizer of a recipe."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ddpipe.train.muon import Muon
from ddpipe.train.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module, *, fused: bool) -> Optimizer:
    """The recipe's optimizer over all parameters of the model that can be trained.

    Args:
        recipe: How to train.
        model: What is trained.
        fused: Whether one kernel may update all weights.
    """
    if recipe.optimizer == "muon":
        return Muon(model, lr=recipe.learning_rate, momentum=recipe.momentum)
    parameters = [one for one in model.parameters() if one.requires_grad]
    exempt = [one for one in parameters if one.ndim < 2]  # noqa: PLR2004 - biases, and scales of normalisation
    decaying = [one for one in parameters if one.ndim >= 2]  # noqa: PLR2004
    groups = [
        {"params": decaying, "weight_decay": recipe.weight_decay},
        {"params": exempt, "weight_decay": recipe.weight_decay if recipe.decay_biases else 0.0},
    ]
    if recipe.optimizer == "adamw":
        return AdamW(groups, lr=recipe.learning_rate, betas=(recipe.momentum, 0.999), fused=fused)
    return SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        fused=fused and not recipe.frozen_epochs,  # that kernel wants momentum of all weights or of none
    )


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this learning rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
