"""The choices of a training: made once, before its first step, and the same for every attempt to resume it.

<output>/choice.json    what was given, what was chosen for the rest, and why
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddpipe.data.manifest import DatasetManifest
from ddpipe.errors import DdpipeError, NoSuchObject
from ddpipe.model import VIEWS, is_own_function
from ddpipe.model.package import load_package
from ddpipe.model.pretrained import look_up
from ddpipe.storage import Store
from ddpipe.train.auto import choose, wanted_weights
from ddpipe.train.choice import Choice, Device, Measured, measured
from ddpipe.train.recipe import Recipe, as_today

CHOICE = "choice.json"

LOWER = 10
"""By how much the rate is divided after a diverging start."""

_log = logging.getLogger(__name__)


def choice_of(store: Store, recipe: Recipe, manifest: DatasetManifest, device: Device) -> Choice:
    """The choice of an earlier attempt, or a new one, which is stored before the first step."""
    key = {"given": recipe.shaping(), "dataset_id": manifest.dataset_id}
    if found := _stored(store, key, recipe):
        return found
    return fresh_choice(recipe, manifest, device)


def fresh_choice(recipe: Recipe, manifest: DatasetManifest, device: Device) -> Choice:
    """What suits the data and the device, after a look at the weights that could be used."""
    data = _with_warm_start(measured(manifest), recipe)
    if name := wanted_weights(data, recipe):
        data = replace(data, weights=look_up(name))
    choice = choose(data, device, recipe)
    choice.recipe.validated()
    return choice


def keep(store: Store, choice: Choice, given: Recipe, manifest: DatasetManifest) -> None:
    """Store the choice for later attempts."""
    content = {
        "given": given.shaping(),
        "dataset_id": manifest.dataset_id,
        "values": {name: getattr(choice.recipe, name) for name in choice.reasons},
        "reasons": dict(choice.reasons),
        "views": list(choice.views),
        "advice": choice.advice,
        "restarted": choice.restarted,
    }
    store.write(CHOICE, json.dumps(content, indent=1).encode())


def lowered(choice: Choice, problem: str) -> Choice:
    """The same with a lower rate, after a diverging start."""
    rate = choice.recipe.learning_rate
    reasons = {**choice.reasons, "learning_rate": f"at {rate:g} {problem}: started again at a tenth of it"}
    recipe = replace(choice.recipe, learning_rate=rate / LOWER)
    return replace(choice, recipe=recipe, reasons=reasons, restarted=True)


def _with_warm_start(data: Measured, recipe: Recipe) -> Measured:
    """With the network of a warm start; a function is never imported because a file names it."""
    if not recipe.warm_start:
        return data
    signature = load_package(recipe.warm_start).signature
    name = "" if is_own_function(signature.architecture) else signature.architecture
    return replace(data, network=name, network_side=min(signature.shape[:2]))


def _stored(store: Store, key: Mapping[str, Any], recipe: Recipe) -> Choice | None:
    """The stored choice, if it is for this recipe and dataset."""
    try:
        found = json.loads(store.read(CHOICE))
    except NoSuchObject:
        return None
    except (ValueError, RecursionError):
        found = None
    try:
        found["given"] = as_today(found["given"])
        if any(found[name] != json.loads(json.dumps(value)) for name, value in key.items()):
            return None
        names, values = recipe.automatic(), found["values"]
        if set(values) != names or is_own_function(str(values.get("model", ""))):
            return None
        views, why = map(str, found["views"])
        return Choice(
            recipe=Recipe.from_dict({**recipe.to_dict(), **values}),
            reasons={name: str(found["reasons"][name]) for name in values},
            views=(views if views in VIEWS else "plain", why),
            advice=str(found["advice"]),
            restarted=bool(found["restarted"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, DdpipeError):
        _log.warning("%s/%s is damaged and not used", store.uri, CHOICE)
        return None
