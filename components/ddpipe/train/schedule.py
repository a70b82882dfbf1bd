"""The learning rate of each step: a pure function of the recipe, so that a checkpoint need not hold it."""

from __future__ import annotations

import math

from ddpipe.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of one step, counted from 0: up a line in the warm-up, then along the schedule.

    Source of the cosine: Loshchilov and Hutter, SGDR, ICLR 2017, without restarts.
    """
    warmup = round(recipe.warmup_fraction * steps)
    if step < warmup:
        return recipe.learning_rate * ((step + 1) / warmup)
    progress = (step - warmup) / (steps - warmup)
    if recipe.schedule == "cosine":
        return recipe.learning_rate * (1 + math.cos(math.pi * progress)) / 2
    return recipe.learning_rate * (1 - progress if recipe.schedule == "linear" else 1)
