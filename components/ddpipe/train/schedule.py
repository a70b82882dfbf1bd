"""The learning rate of each step: a pure function of the recipe, so that a checkpoint need not hold it."""

from __future__ import annotations

import math

from ddpipe.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of one step, counted from 0: up a line, then down half a cosine to 0.

    Source: Loshchilov and Hutter, SGDR, ICLR 2017, without restarts.
    """
    warmup = round(recipe.warmup_fraction * steps)
    if step < warmup:
        return recipe.learning_rate * ((step + 1) / warmup)
    return recipe.learning_rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
