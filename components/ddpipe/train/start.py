"""Where a training begins: at its first step, at a checkpoint, or nowhere because it has finished.

<output>/choice.json    what was given, what was chosen for the rest, and why: the same for every attempt
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ddpipe.data.index import TRAINED_ON, counted, held_out_seen, trained_on
from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.npy import to_bytes
from ddpipe.distributed import World
from ddpipe.errors import (
    CheckpointError,
    DatasetError,
    DdpipeError,
    NoSuchObject,
    ParameterError,
    check_schema,
    listed,
)
from ddpipe.model import VIEWS, is_own_function
from ddpipe.model.checkpoint import Checkpoint, Saved, finished, load, newest
from ddpipe.model.package import FORMAT as PACKAGE
from ddpipe.model.package import load_package, seen_by
from ddpipe.model.tensors import rows_of
from ddpipe.model.torchvision_models import look_up
from ddpipe.model.training_record import CHOICE, RECORD
from ddpipe.parameters import AUTO
from ddpipe.storage import Store
from ddpipe.train.auto import ChosenRecipe, Device, Measured, choose, measured, wanted_weights
from ddpipe.train.recipe import AT_FIRST, NONE, Recipe, as_today, own_functions
from ddpipe.train.strategies import is_sharded

CHOICE_SCHEMA = 1

SPLITS = ("train", "validation")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a training begins: its recipe, and the checkpoint to resume, which a new training has not."""

    choice: ChosenRecipe
    saved: Saved | None
    checkpoint: Checkpoint | None


def decided_start(
    store: Store, recipe: Recipe, manifest: DatasetManifest, data: Store, world: World
) -> Start | None:
    """Where all ranks begin; of pieces each reads its rows, of large whole tensors rank 0 has the values."""
    sharded, found = is_sharded(recipe.strategy, world), list[Start | None]()

    def decide() -> Start | None:
        device = Device(world.device.type, world.size)
        start = _start(store, recipe, manifest, data, device, whole=not sharded)
        found.append(start)
        if start and start.checkpoint and sharded:
            from ddpipe.train.fully_sharded import outlined  # noqa: PLC0415 - a second to import

            return replace(start, checkpoint=outlined(start.checkpoint))
        return start

    decided = world.decided(decide)
    start = found[0] if found else decided
    if start and start.checkpoint and start.checkpoint.pieces:
        own = start.checkpoint.with_shares(store, partial(rows_of, world.rank, world.size))
        return replace(start, checkpoint=own)
    return start


def _start(
    store: Store, given: Recipe, manifest: DatasetManifest, data: Store, device: Device, *, whole: bool
) -> Start | None:
    """Where rank 0 begins; None if the training has finished, and its result can be read."""
    choice = choice_of(store, given, manifest, device)
    recipe = choice.recipe
    if done := finished(store):
        try:
            result = load(store, done, whole=False)
        except CheckpointError as problem:
            _log.warning("the result of this training is lost: %s", problem)
        else:
            _check_same(result, choice, manifest, store)
            return None
    saved, checkpoint = newest(store, whole=whole) or (None, None)
    if checkpoint:
        _check_same(checkpoint, choice, manifest, store)
    store.check_writable()  # before the first epoch, not at its end
    if not checkpoint:
        _record_samples(store, recipe, manifest, data)
        keep(store, choice, given, manifest)
    if done:
        store.delete(RECORD)  # what it names is no result any more
    return Start(choice, saved, checkpoint)


def _record_samples(store: Store, recipe: Recipe, manifest: DatasetManifest, data: Store) -> None:
    """Record what the model will have been trained on, and reject weights that have seen what judges it."""
    before = None
    if recipe.warm_start:
        before = seen_by(PACKAGE.open(recipe.warm_start))
        if before is None:
            _log.warning(
                "%s does not record its training samples: test images may be among them", recipe.warm_start
            )
            store.delete(TRAINED_ON)  # of an earlier attempt: what is not known is not claimed
            return
        if seen := held_out_seen(manifest, data, before):
            raise ParameterError(
                what="training cannot start from these weights",
                which=recipe.warm_start,
                seen=f"they were trained on {counted(seen, manifest)} of this dataset version: its scores "
                "would be too good",
                do="Start from random weights, or prepare the version so that images stay in their splits "
                "(the same split rule and seed).",
            )
    store.write(TRAINED_ON, to_bytes(trained_on(manifest, data, before)))


def check_trainable(manifest: DatasetManifest, uri: str) -> None:
    """Reject a dataset version that lacks what a training needs."""
    problems = [f"its {name} split is empty" for name in SPLITS if not manifest.splits[name].count]
    validation, multilabel = manifest.splits["validation"], manifest.task == "multilabel"
    if multilabel and not problems and not any(0 < here < validation.count for here in validation.per_class):
        problems.append("no label is both present and absent in its validation split: there is no AUC")
    if problems:
        raise DatasetError(
            what="training cannot start",
            which=uri,
            seen=listed(problems),
            do="Prepare it again with more images or a larger `validation_fraction`, or name "
            "another dataset version.",
        )


def _check_same(
    checkpoint: Checkpoint, choice: ChosenRecipe, manifest: DatasetManifest, store: Store
) -> None:
    """Reject a checkpoint of another training; a later hyperparameter had its default, or was open."""
    then = {**Recipe().to_dict(), **AT_FIRST, **as_today(checkpoint.recipe)}
    now = choice.recipe.to_dict()
    then["pretrained"] = then["pretrained"] or NONE
    was_open = {name for name in choice.reasons if then.get(name) == AUTO}
    shaping = choice.recipe.shaping().keys() - was_open
    problems = [
        f"{name} was {value!r}, is now {now[name]!r}"
        if name in now
        else f"{name} was {value!r}, no longer exists"
        for name, value in then.items()
        if name not in now or (name in shaping and value != now[name])
    ]
    if checkpoint.dataset_id != manifest.dataset_id:
        problems.append(f"dataset version was {checkpoint.dataset_id}, is now {manifest.dataset_id}")
    if problems:
        raise CheckpointError(
            what="training cannot be resumed",
            which=f"{store.uri}/checkpoints",
            seen=f"its checkpoints belong to another training; {listed(problems)}",
            do="Name another output for this training, or use the old recipe and dataset.",
        )


def choice_of(store: Store, recipe: Recipe, manifest: DatasetManifest, device: Device) -> ChosenRecipe:
    """The choice of an earlier attempt, or a new one, which is stored before the first step."""
    return _stored(store, manifest.dataset_id, recipe) or fresh_choice(recipe, manifest, device)


def fresh_choice(recipe: Recipe, manifest: DatasetManifest, device: Device) -> ChosenRecipe:
    """What suits the data and the device, after a look at the weights that could be used."""
    data = _with_warm_start(measured(manifest), recipe)
    if name := wanted_weights(data, recipe):
        data = replace(data, weights=look_up(name))
    choice = choose(data, device, recipe)
    choice.recipe.validated()
    return choice


def keep(store: Store, choice: ChosenRecipe, given: Recipe, manifest: DatasetManifest) -> None:
    """Store the choice for later attempts."""
    content = {
        "schema": CHOICE_SCHEMA,
        "given": given.shaping(),
        "defaults": Recipe().shaping(),
        "dataset_id": manifest.dataset_id,
        "values": {name: getattr(choice.recipe, name) for name in choice.reasons},
        "reasons": dict(choice.reasons),
        "views": list(choice.views),
        "advice": choice.advice,
    }
    store.write(CHOICE, json.dumps(content, indent=1).encode())


def _with_warm_start(data: Measured, recipe: Recipe) -> Measured:
    """With the network of a warm start; a function is never imported because a file names it."""
    if not recipe.warm_start:
        return data
    signature = load_package(recipe.warm_start).signature
    name = "" if is_own_function(signature.architecture) else signature.architecture
    return replace(data, network=name, network_side=min(signature.shape[:2]))


def _with_defaults_of_then(recipe: Recipe, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Recipe:
    """The recipe with the defaults that a training began with: they belong to it."""
    today = Recipe().shaping()
    left_open = {name for name, value in recipe.shaping().items() if value == today[name]}
    # What was declared later had one value in every training until then.
    then = {name: given.get(name, AT_FIRST.get(name, today[name])) for name in left_open}
    kept = {name: value for name, value in then.items() if value == defaults.get(name, value)}
    return Recipe.from_dict({**recipe.to_dict(), **kept})


def _stored(store: Store, dataset_id: str, recipe: Recipe) -> ChosenRecipe | None:
    """The stored choice, if it is for this recipe and dataset."""
    try:
        found = json.loads(store.read(CHOICE))
        check_schema(found, CHOICE_SCHEMA, f"{store.uri}/{CHOICE}")
    except NoSuchObject:
        return None
    except (ValueError, RecursionError):
        found = None
    try:
        given = as_today(found["given"])
        today = Recipe().shaping()
        known = {name: today[name] for name in given if name in today}  # a file of before names no defaults
        recipe = _with_defaults_of_then(recipe, given, as_today(found.get("defaults", known)))
        now = json.loads(json.dumps(recipe.shaping()))
        if found["dataset_id"] != dataset_id or any(now.get(name) != value for name, value in given.items()):
            return None
        names, values = recipe.automatic(), found["values"]
        if set(values) != names or own_functions(values):
            return None
        views, why = map(str, found["views"])
        return ChosenRecipe(
            recipe=Recipe.from_dict({**recipe.to_dict(), **values}),
            reasons={name: str(found["reasons"][name]) for name in values},
            views=(views if views in VIEWS else "plain", why),
            advice=str(found["advice"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, DdpipeError):
        _log.warning("%s/%s is damaged and not used", store.uri, CHOICE)
        return None
