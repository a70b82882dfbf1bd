"""Recipes for tests that take steps themselves: complete, so that nothing is left for the data to choose."""

from __future__ import annotations

from typing import Any

from ddpipe.train.presets import recipe_of
from ddpipe.train.recipe import Recipe


def plain(**values: Any) -> Recipe:
    """The preset "plain" with these values."""
    return recipe_of("plain", values)
