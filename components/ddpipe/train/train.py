"""The step: a dataset version and a recipe become a trained model, in one process or many.

<output>/checkpoints/    training state (ddpipe.model.checkpoint)
<output>/metrics.jsonl   one line per epoch
<output>/tensorboard/    event files
<output>/training.json   what was done and what came out; written last, so it marks success
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import torch

from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.distributed import World, process_group, rank
from ddpipe.errors import CheckpointError, DatasetError, listed
from ddpipe.model.checkpoint import Checkpoint, latest
from ddpipe.storage import Store, open_store
from ddpipe.train.journal import keep_journal
from ddpipe.train.loop import Trainer
from ddpipe.train.recipe import Recipe
from ddpipe.train.stop import watching
from ddpipe.train.tasks import scorable

_log = logging.getLogger(__name__)


def train(dataset: str, output: str, recipe: Recipe) -> None:
    """Train, or go on where an earlier process left off; a training that has finished is left as it is.

    Every process of the group calls this alike.

    Args:
        dataset: URI of the dataset version's manifest.
        output: Folder of this training.
        recipe: How to train.

    Raises:
        ParameterError: The recipe can not be, or does not suit the images.
        DatasetError: The dataset is damaged, or not for this.
        CheckpointError: `output` holds another training, or a damaged one.
        StoreError: Something can not be read or written.
        Diverged: The loss is no longer a number.
        Interrupted: Told to stop (SIGTERM, SIGINT); the state is saved.
        TrainingError: Another process of the group went away.
    """
    with watching(recipe.validated().checkpoint_minutes) as watch:
        manifest, store = load_manifest(dataset), open_store(output)
        _check_trainable(manifest, dataset)
        checkpoint = latest(store)
        if checkpoint:
            _check_same(checkpoint, recipe, manifest, store)
            if store.exists("training.json"):
                _say("%s is trained already: nothing to do", store.uri)
                return
        if rank() == 0:
            store.check_writable()
        splits = {name: open_split((manifest, store_of(dataset)), name) for name in ("train", "validation")}
        _make_deterministic()
        with process_group() as world:
            trainer = Trainer(recipe, manifest, splits, store, world)
            if checkpoint:
                trainer.restore(checkpoint)
            _say(
                "training %s on %s (%d images, %d classes), processes: %d, device: %s, from step %d of %d",
                *(recipe.model, manifest.name, len(splits["train"]), len(manifest.classes)),
                *(world.size, world.device.type, trainer.step, trainer.steps),
            )
            with keep_journal(store, main=world.is_main, step=trainer.step, steps=trainer.steps) as journal:
                trainer.run(journal, watch)
            if world.is_main:
                record = _record(
                    dataset, manifest, recipe, world=world, trainer=trainer, checkpoint=checkpoint
                )
                store.write("training.json", json.dumps(record, indent=2).encode())
                _say("trained: %s", store.uri)
            world.barrier()


def _say(text: str, *values: object) -> None:
    """Log on one rank what is the same on all."""
    if rank() == 0:
        _log.info(text, *values)


def _make_deterministic() -> None:
    # cuBLAS reads this when it starts; without it, torch refuses to be deterministic on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True), which takes seconds to import a compiler first.
    torch.set_deterministic_debug_mode("error")


def _check_trainable(manifest: DatasetManifest, uri: str) -> None:
    problems = [
        f"its {name} split is empty"
        for name in ("train", "validation")
        if not manifest.splits[name].sample_ids
    ]
    multilabel = manifest.task == "multilabel"
    if multilabel and not problems and not scorable(manifest.splits["validation"].labels).any():
        problems.append("no label is both present and absent in its validation split: there is no AUC")
    if problems:
        raise DatasetError(
            what="training can not start",
            which=uri,
            seen=listed(problems),
            do="Name another dataset version.",
        )


def _check_same(checkpoint: Checkpoint, recipe: Recipe, manifest: DatasetManifest, store: Store) -> None:
    """Refuse to go on from somebody else's checkpoint."""
    problems = [
        f"{name} was {checkpoint.recipe.get(name)!r}, is now {value!r}"
        for name, value in recipe.shaping().items()
        if checkpoint.recipe.get(name) != value
    ]
    if checkpoint.dataset_id != manifest.dataset_id:
        problems.append(f"dataset version was {checkpoint.dataset_id}, is now {manifest.dataset_id}")
    if problems:
        raise CheckpointError(
            what="training can not go on",
            which=f"{store.uri}/checkpoints",
            seen=f"they are of another training; {listed(problems)}",
            do="Name another output for this training, or go on with the old recipe and dataset.",
        )


def _record(
    dataset: str,
    manifest: DatasetManifest,
    recipe: Recipe,
    *,
    world: World,
    trainer: Trainer,
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """The content of training.json."""
    seconds = sum(line["seconds"] for line in trainer.history)
    images = recipe.epochs * len(manifest.splits["train"].sample_ids)
    return {
        "model": recipe.model,
        "recipe": recipe.to_dict(),
        "dataset": dataset,
        "dataset_id": manifest.dataset_id,
        "world_size": world.size,
        "device": world.device.type,
        "torch": torch.__version__,
        "epochs": recipe.epochs,
        "steps": trainer.steps,
        "seconds": round(seconds, 3),
        "images_per_second": round(images / seconds, 1),
        "resumed_from": checkpoint.step if checkpoint else None,
        "history": trainer.history,
        "final": {
            name: value
            for name, value in trainer.history[-1].items()
            if name.startswith(("train", "validation"))
        },
    }
