"""The step: a dataset version and a recipe become a trained model, in one process or many.

<output>/checkpoints/    training state (ddpipe.model.checkpoint)
<output>/choice.json     what was chosen for values that were not given (start.py)
<output>/metrics.jsonl   one line per epoch
<output>/tensorboard/    event files
<output>/training.json   what was done and what came out; written last, so it marks success
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.data.shards import working_shape
from ddpipe.distributed import STALL, World, process_group, rank
from ddpipe.model.checkpoint import claim
from ddpipe.model.package import load_package, surroundings
from ddpipe.model.training_record import RECORD, RECORD_SCHEMA
from ddpipe.runs import Run
from ddpipe.storage import Store, open_store
from ddpipe.tracker import Tracker
from ddpipe.train.auto import ChosenRecipe
from ddpipe.train.batches import images_seen
from ddpipe.train.constants import COMPILED_DEVICES
from ddpipe.train.journal import keep_journal, summarized
from ddpipe.train.loop import Trainer
from ddpipe.train.paces import PaceTimer
from ddpipe.train.recipe import Determinism, Recipe
from ddpipe.train.saver import Saver, Uploads, patience_for, uploading
from ddpipe.train.start import SPLITS, Start, check_trainable, decided_start
from ddpipe.train.step import determinism
from ddpipe.train.timetable import Budget, TrainingRequest, Watch, scored_later, watching

_log = logging.getLogger(__name__)


def train(
    dataset: str,
    output: str,
    recipe: Recipe,
    *,
    began: float | None = None,
    finds_processes: bool = False,
    before_step: Callable[[Trainer], None] = lambda _: None,
) -> None:
    """Train, or resume where an earlier process stopped; every process of the group calls this alike.

    With `finds_processes` it may end early, without a record, so that another number of processes resumes it.
    """
    began = time.time() if began is None else began
    manifest, store = load_manifest(dataset), open_store(output)
    check_trainable(manifest, dataset)
    shaping = {f"{name} of the recipe": repr(value) for name, value in recipe.shaping().items()}
    with (
        watching(recipe.validated().checkpoint_minutes) as watch,
        process_group({"dataset version": manifest.dataset_id, **shaping}) as world,
    ):
        world.wait_at_most(STALL)  # it knows for how long; ddpipe.torchrun, of any script, does not
        start = decided_start(store, recipe, manifest, store_of(dataset), world)
        if start is None:
            _log_once("%s is trained already: nothing to do", store.uri)
            return
        if _train(start, dataset, manifest, store, world, watch, began, before_step, finds=finds_processes):
            _log_once("trained: %s", store.uri)
        world.barrier()


def _train(
    start: Start,
    dataset: str,
    manifest: DatasetManifest,
    store: Store,
    world: World,
    watch: Watch,
    began: float,
    before_step: Callable[[Trainer], None],
    *,
    finds: bool,
) -> bool:
    """Train from a start; whether that was all, or another number of processes is to continue."""
    choice, recipe = start.choice, start.choice.recipe
    shape = working_shape(manifest.shape, recipe.resolution)
    splits = {name: open_split((manifest, store_of(dataset)), name, shape=shape) for name in SPLITS}
    compiled = recipe.compile and world.device.type in COMPILED_DEVICES
    with (
        uploading(patience_for(store)) if world.is_main else nullcontext() as uploads,
        determinism(Determinism(recipe.deterministic), recipe.model, compiled=compiled),
    ):
        launch = time.time() - began
        before = world.decided(lambda: _prepared_in(store)) + launch
        saver = _saver(start, store, world, uploads, recipe, before) if uploads else None
        restart = partial(watch.request, TrainingRequest.RESTART)
        timer = PaceTimer(store, world, uploads, launch, restart) if uploads and finds else None
        trainer = Trainer(
            *(recipe, manifest, splits, store, world, saver),
            resumed=start.checkpoint is not None,
            budget=_budget(recipe, manifest, start, before, launch, world),
            before_step=(before_step, timer) if timer else (before_step,),
        )
        if start.checkpoint:
            trainer.restore(start.checkpoint)
        _log_start(start, manifest, world, trainer)
        done = trainer.timetable.done(trainer.step)

        def describe(tracker: Tracker) -> None:
            used = (manifest.name, manifest.dataset_id, dataset)
            tracker.training(used, recipe.shaping(), saver.lineage if saver else {})

        with keep_journal(store, uploads, step=trainer.step, done=done, about=describe) as journal:
            is_trained = trainer.run(journal, watch)
        if saver and is_trained:
            saver.uploads.finish()
            record = _record(dataset, manifest, choice, world=world, trainer=trainer, saver=saver)

            def conclude() -> None:
                saver.attempt.check_newest()
                store.write(RECORD, json.dumps(record, indent=2).encode())

            saver.uploads.put(RECORD, conclude)
    return is_trained


def _log_start(start: Start, manifest: DatasetManifest, world: World, trainer: Trainer) -> None:
    """Log what was chosen, unless an earlier attempt has, and what is trained from where."""
    choice, recipe = start.choice, start.choice.recipe
    if not start.checkpoint:
        if choice.reasons:
            _log_once("%s", choice.line())
        if recipe.minutes and "epochs" not in choice.reasons:
            _log_once("epochs %d is not used: %g minutes decide", recipe.epochs, recipe.minutes)
        if choice.advice:
            _log_once("%s", choice.advice)
    _log_once(
        "training %s on %s (%d images, %d classes), processes: %d, device: %s, from step %d of %s%d",
        *(recipe.model, manifest.name, manifest.splits["train"].count, len(manifest.classes)),
        *(world.size, world.device.type, trainer.step),
        *("at most " if trainer.step == 0 and recipe.minutes else "", trainer.steps),
    )


def _budget(
    recipe: Recipe, manifest: DatasetManifest, start: Start, before: float, launch: float, world: World
) -> Budget | None:
    """The recipe's minutes, and what of them is used already, by this and by earlier attempts."""
    if not recipe.minutes:
        return None
    attempts = start.checkpoint.attempts if start.checkpoint else []
    earlier = sum(attempt["seconds"] + attempt.get("before", 0.0) for attempt in attempts)
    test, validation = (manifest.splits[name].count for name in ("test", "validation"))
    # Of GPUs, the one process of evaluation has its own; of processors, all those of its machine.
    less = world.size if world.device.type == "cuda" else _nodes()
    scored = less * scored_later(test, validation, start.choice.views[0])
    return Budget(60 * recipe.minutes, earlier + before, launch, scored, min(launch, time.process_time()))


def _nodes() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def _prepared_in(store: Store) -> float:
    """Seconds that preparing the data took, in the run that this training belongs to; 0 if there is none."""
    steps = Run(store.uri.rpartition("/")[0]).steps()
    return sum(float(step["seconds"]) for step in steps if step["step"] == "prepare")


def _saver(
    start: Start, store: Store, world: World, uploads: Uploads, recipe: Recipe, before: float
) -> Saver:
    lineage = surroundings(os.environ)
    if recipe.warm_start and not start.checkpoint:
        lineage["warm_start"] = load_package(recipe.warm_start).model_id
    return Saver(
        claim(store, start.saved),
        uploads,
        start=start.checkpoint,
        world_size=world.size,
        nodes=_nodes(),
        lineage=lineage,
        before=before,
    )


def _log_once(text: str, *values: object) -> None:
    """Log on one rank what is the same on all."""
    if rank() == 0:
        _log.info(text, *values)


def _record(
    dataset: str,
    manifest: DatasetManifest,
    choice: ChosenRecipe,
    *,
    world: World,
    trainer: Trainer,
    saver: Saver,
) -> dict[str, Any]:
    """The content of training.json."""
    attempts, recipe = saver.attempts(), choice.recipe
    result = saver.result(best=recipe.model_selection == "best")
    (final,) = [line for line in trainer.history if line["step"] == result.step]
    seconds = sum(attempt["seconds"] for attempt in attempts)
    epochs = len(trainer.history)
    there = manifest.splits["train"].count
    images = images_seen(trainer.step, there, recipe.batch_size)
    ended = "all epochs are done"
    if trainer.step < trainer.steps:
        ended = f"no better epoch for {recipe.patience}"
    elif recipe.minutes and trainer.step < trainer.timetable.most:
        ended = f"the {recipe.minutes:g} minutes were up"
    return {
        "schema": RECORD_SCHEMA,
        "model": recipe.model,
        "recipe": recipe.to_dict(),
        "choice": choice.facts(),
        "dataset": dataset,
        "dataset_id": manifest.dataset_id,
        "checkpoint": asdict(result),
        "world_size": world.size,
        "device": world.device.type,
        "torch": torch.__version__,
        "lineage": saver.lineage,
        "epochs": epochs,
        "images_seen": images,
        "training_images": there,
        "ended": ended,
        "steps": trainer.step,
        "schedule": trainer.timetable.schedule,
        "seconds": round(seconds, 3),
        "attempts": attempts,
        "images_per_second": round(images / sum(line["seconds"] for line in trainer.history), 1),
        "resumed_from": attempts[-1]["step"] if attempts[1:] else None,
        "summary": summarized(trainer.history, attempts),
        "history": trainer.history,
        "final": {name: value for name, value in final.items() if name.startswith(("train", "validation"))},
    }
