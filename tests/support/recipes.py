"""Recipes for tests that take steps themselves: complete, so that nothing is left for the data to choose."""

from __future__ import annotations

from typing import Any

from ddpipe.train.recipe import AT_FIRST, Recipe


def plain(**values: Any) -> Recipe:
    """A small network with fixed values, and with these."""
    return Recipe.from_dict({**AT_FIRST, **values})
