"""The record of a finished training, training.json: written by train, read by all that shows a run.

It is read as any file from a store: by its types, before anything uses it. It is read without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ddpipe.data.typed import typed
from ddpipe.errors import CorruptObject, NoSuchObject, check_schema
from ddpipe.storage import Store, open_store

RECORD, RECORD_SCHEMA = "training.json", 1
CHOICE = "choice.json"  # beside the record, from the first step on; see train/start.py
METRICS = "metrics.jsonl"  # a line per epoch
MEMORY = "memory.json"  # there once the memory did not suffice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What readers use of a record; there is more in it."""

    recipe: Mapping[str, Any]
    world_size: int
    device: str
    torch: str
    epochs: int
    steps: int
    seconds: float
    images_per_second: float
    resumed_from: int | None
    history: tuple[Mapping[str, Any], ...]
    images_seen: int = 0
    training_images: int = 0
    ended: str = ""
    dataset: str = ""
    final: Mapping[str, float] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] = field(default_factory=dict)


def training_record(training_uri: str) -> dict[str, Any]:
    """The record of a finished training."""
    store = open_store(training_uri)
    content = store.read(RECORD)
    try:
        values: dict[str, Any] = json.loads(content)
        check_schema(values, RECORD_SCHEMA, f"{store.uri}/{RECORD}")
        _check(values)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(
            what="the record of a training is malformed",
            which=f"{store.uri}/{RECORD}",
            seen=str(error),
            do="Delete it and run the training again: it resumes from its last checkpoint.",
        ) from error
    return values


def how_far(record: Mapping[str, Any]) -> str:
    """How far a training got, and why it ended; empty for a record of before this was noted."""
    if not record.get("training_images"):
        return ""
    seen, there = record["images_seen"], record["training_images"]
    return f"{seen:,} images seen: {seen / there:.3g} epochs of {there:,}; {record['ended']}"


def parts_of(store: Store) -> int:
    """In how many parts each rank takes its share of a batch, to need less memory at a time."""
    try:
        return int(json.loads(store.read(MEMORY))["parts"])
    except (NoSuchObject, ValueError, KeyError, TypeError):
        return 1


def unfinished(runs: Store, dataset_id: str) -> Iterator[str]:
    """The folders, below that of the runs, of trainings on a dataset version that have not ended."""
    keys = {info.key for info in runs.list()}
    for key in sorted(key for key in keys if key.endswith(f"/{CHOICE}")):
        folder = key.removesuffix(f"/{CHOICE}")
        if f"{folder}/{RECORD}" not in keys and f'"{dataset_id}"'.encode() in runs.read(key):
            yield folder


def _check(values: object) -> None:
    """Raise ValueError for what no training wrote."""
    if not isinstance(values, Mapping):
        raise ValueError("it is not an object")  # noqa: TRY004 - a file's fault
    record = typed(_Record, {one.name: values[one.name] for one in fields(_Record) if one.name in values})
    if not record.history:
        raise ValueError("it lists no epoch")
    for number, epoch in enumerate(record.history):
        numbers = {name: value for name, value in epoch.items() if name.startswith(("train_", "validation_"))}
        typed(_Epoch, {"epoch": epoch.get("epoch"), "measured": numbers}, f"history[{number}].")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """What readers use of an epoch."""

    epoch: int
    measured: Mapping[str, float]
