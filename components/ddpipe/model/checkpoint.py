"""Training state: written so that any death leaves a whole one, found again, and loaded without pickle.

<output>/checkpoints/step-00000120.pt     content, written first
<output>/checkpoints/latest.json          pointer, written last: the newest two, each with its SHA-256
<output>/training.json                    written by train when it has finished
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
from dataclasses import dataclass, fields
from typing import Any

import torch

from ddpipe.errors import CheckpointError, NoSuchObject
from ddpipe.model.architectures import Classifier, build
from ddpipe.storage import Store, open_store

SCHEMA = 1
KEEP = 2

_POINTER = "checkpoints/latest.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that training needs to go on, bit for bit, and a reader to rebuild the model.

    There is no state of random numbers: whatever is drawn is keyed by seed, epoch, step and rank.

    Attributes:
        step: Optimizer steps taken.
        epoch: Epochs finished.
        recipe: The hyperparameters, with the seed.
        dataset_id: Of the dataset version trained on.
        network: `name`, `shape` (H, W, C) and `classes`, as `architectures.build` takes them.
        world_size: Processes that trained. Another number may go on; bits are equal at the same number only.
        states: State dicts of "model" and "optimizer", and what else the training loop keeps, on the CPU.
        history: One record for each finished epoch.
        seconds: Spent in the unfinished epoch.
    """

    step: int
    epoch: int
    recipe: dict[str, Any]
    dataset_id: str
    network: dict[str, Any]
    world_size: int
    states: dict[str, Any]
    history: list[dict[str, Any]]
    seconds: float = 0.0
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class _Entry:
    """A checkpoint as the pointer names it."""

    file: str
    sha256: str


def save(store: Store, checkpoint: Checkpoint) -> None:
    """Write a checkpoint below `checkpoints/`, then point at it, then drop all but the last two.

    Raises:
        StoreError: It can not be written; the checkpoints before it remain.
    """
    content = io.BytesIO()
    torch.save({field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}, content)
    data = content.getvalue()
    newest = _Entry(f"checkpoints/step-{checkpoint.step:08d}.pt", hashlib.sha256(data).hexdigest())
    entries = [newest, *(entry for entry in _entries(store) if entry.file != newest.file)][:KEEP]
    store.write(newest.file, data)
    pointer = [{"file": entry.file, "sha256": entry.sha256} for entry in entries]
    store.write(_POINTER, json.dumps({"schema": SCHEMA, "checkpoints": pointer}).encode())
    kept = {_POINTER, *(entry.file for entry in entries)}
    for stored in list(store.list("checkpoints/")):
        if stored.key not in kept:
            store.delete(stored.key)


def latest(store: Store) -> Checkpoint | None:
    """The newest checkpoint below `store` that is whole, or None if nothing was ever saved.

    Raises:
        CheckpointError: Checkpoints were saved and none of them can be read.
        StoreError: The store does not answer.
    """
    entries = _entries(store)
    problems = []
    for entry in entries:
        try:
            return _load(store, entry)
        except _UnreadableError as problem:
            problems.append(f"{entry.file}: {problem}")
            _log.warning("skipping a checkpoint: %s/%s", store.uri, problems[-1])
    if entries:
        raise _refused(store, "; ".join(problems))
    return None


def load_model(training_uri: str) -> tuple[Classifier, Checkpoint]:
    """The model that a finished training left, on the CPU and in evaluation mode.

    Args:
        training_uri: The training's output: the folder of its training.json.

    Raises:
        CheckpointError: The training has not finished, or its checkpoint is damaged.
        StoreError: The store does not answer.
    """
    store = open_store(training_uri)
    checkpoint = latest(store) if store.exists("training.json") else None
    if checkpoint is None:
        raise CheckpointError(
            what="there is no trained model",
            which=store.uri,
            seen="the training has not finished: training.json or its checkpoint is missing",
            do="Name the output of a training; if it was interrupted, run it again to go on.",
        )
    return classifier_of(checkpoint), checkpoint


def classifier_of(checkpoint: Checkpoint) -> Classifier:
    """The model in a checkpoint, on the CPU and in evaluation mode."""
    network, weights = checkpoint.network, checkpoint.states["model"]
    built = build(network["name"], tuple(network["shape"]), network["classes"])
    classifier = Classifier(built, weights["mean"].flatten().tolist(), weights["std"].flatten().tolist())
    classifier.load_state_dict(weights)
    return classifier.eval()


class _UnreadableError(Exception):
    """One checkpoint can not be read; the one before it may."""


def _entries(store: Store) -> list[_Entry]:
    try:
        pointer = json.loads(store.read(_POINTER))
        return [_Entry(entry["file"], entry["sha256"]) for entry in pointer["checkpoints"]]
    except NoSuchObject:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise _refused(store, f"{_POINTER} is malformed ({error!r})") from error


def _load(store: Store, entry: _Entry) -> Checkpoint:
    try:
        data = store.read(entry.file)
    except NoSuchObject as error:
        raise _UnreadableError("it is missing") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _UnreadableError("its content has changed since it was written")
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if content["schema"] != SCHEMA:
            raise _UnreadableError(f"it has schema {content['schema']}, this ddpipe reads schema {SCHEMA}")
        return Checkpoint(**content)
    except (RuntimeError, pickle.UnpicklingError, KeyError, TypeError) as error:
        raise _UnreadableError(f"it is no checkpoint ({error!r})") from error


def _refused(store: Store, seen: str) -> CheckpointError:
    return CheckpointError(
        what="no checkpoint can be read",
        which=f"{store.uri}/checkpoints",
        seen=seen,
        do="Restore the files, or delete the folder to train from the start.",
    )
