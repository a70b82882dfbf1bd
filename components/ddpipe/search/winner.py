"""The best recipe of a study: written once the study has ended, and read where a training starts from it.

The file may come from a bucket that others can write to. Its values are validated like a user's, and a
function that it names as the network is never imported: the user has to name it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from ddpipe.errors import ParameterError
from ddpipe.model import is_own_function
from ddpipe.storage import split_uri
from ddpipe.train.recipe import Recipe

FILE = "best.json"
"""In the folder of a study."""

LARGEST = 1_000_000
"""Bytes of the file."""

_LONGEST = 200
"""Characters of a place that a message shows."""


def best_recipe(place: str, given: Collection[str] = ()) -> dict[str, Any]:
    """The values of the recipe that a study found."""
    text = place if place.lstrip().startswith("{") else _read(place)
    try:
        content = json.loads(text)
        values = content.get("recipe", content)
        found = Recipe.from_dict(values).to_dict()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _not_one(place, f"it is not a JSON object of names and values ({error})") from error
    except ParameterError as error:
        raise _not_one(place, error.seen) from error
    if is_own_function(found["model"]) and "model" not in given:
        raise ParameterError(
            what="the recipe is not used",
            which=_shown(place),
            seen=f"its network is the function {found['model']}, and a file never decides what is imported",
            do=f"Name the function yourself: `model` {found['model']}",
        )
    return found


def _read(place: str) -> str:
    uri = place if place.endswith(".json") else f"{place.rstrip('/')}/{FILE}"
    store, name = split_uri(uri)
    size = next((item.size for item in store.list(name) if item.key == name), None)
    if size is None:
        raise ParameterError(
            what="there is no best recipe",
            which=place,
            seen=f"{uri} does not exist",
            do="Name the folder of a finished study; repeat the command of an unfinished one to continue.",
        )
    if size > LARGEST:
        raise _not_one(place, f"it has {size} bytes, more than {LARGEST}")
    return store.read(name).decode(errors="replace")


def _not_one(place: str, seen: str) -> ParameterError:
    return ParameterError(
        what="the recipe is not valid",
        which=_shown(place),
        seen=seen,
        do="Name a study's folder, or a JSON object of hyperparameters, with `recipe`.",
    )


def _shown(place: str) -> str:
    return place if len(place) <= _LONGEST else f"{place[:_LONGEST]}…"


def recipe_text(recipe: Recipe) -> str:
    """What shapes the model, as one line that `best_recipe` reads."""
    return json.dumps(recipe.shaping(), sort_keys=True)


def winner_json(recipe: Recipe, **facts: object) -> bytes:
    """The content of the file: the recipe, and what is known about it."""
    return json.dumps({"recipe": recipe.to_dict(), **facts}, indent=1).encode()
