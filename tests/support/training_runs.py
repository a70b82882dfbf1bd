"""Trainings for tests: real processes over gloo, forked from one that has torch in memory already.

Starting torch takes seconds, and tests of resuming need many processes; `ddpipe.processes.local`, which
starts them the slow way, has tests of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import free_port
from recipes import plain
from samples import a_manifest, a_split, written
from stored import encode, latest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_ranks import Meddling, train_as_rank

from ddpipe.data.shards import shard_key
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store
from ddpipe.train.recipe import Recipe

TRAIN_SAMPLES = 1405
STEPS_PER_EPOCH = 19
RECIPE = plain(epochs=2, batch_size=78, precision="fp32")
"""Its last batch has one sample, so with two ranks one of them has none."""

PROCESSES = multiprocessing.get_context("forkserver")
# every new process runs the main module's imports again: pytest's
PROCESSES.set_forkserver_preload(["ddpipe.train.train", "torch._dynamo", "pytest"])


@dataclass(frozen=True)
class Ended:
    """How the ranks ended: exit codes (negative: the signal), and what each wrote into its error file."""

    codes: list[int | None]
    errors: list[dict[str, Any]]


def digits(folder: Path, seed: int = 0) -> str:
    """The manifest of the digits dataset, with `TRAIN_SAMPLES` for training, in a store of its own."""
    spec = PrepareSpec(source="digits", store=str(folder), split_seed=seed, test_fraction=0.118)
    return prepare(spec).manifest_uri


def findings(folder: Path, counts: tuple[int, int] = (210, 53)) -> str:
    """The manifest of a multilabel dataset: noise with up to three brighter places, each of them a label."""
    store, generator, splits = open_store(str(folder)), np.random.default_rng(0), {}
    for name, count in (("train", counts[0]), ("validation", counts[1]), ("test", 10)):
        labels = generator.random((count, 3)) < (0.5, 0.3, 0.1)
        images = generator.integers(0, 200, (count, 8, 8, 1), dtype=np.uint8)
        for number, (row, column) in enumerate(((0, 0), (0, 4), (4, 0))):
            images[labels[:, number], row : row + 3, column : column + 3] += 40
        shard, data = encode(images)
        store.write(shard_key(shard), data)
        ids = [f"{name}-{number}.png" for number in range(count)]
        splits[name] = a_split(count, 3, [shard], ids=ids, labels=labels.astype(int), store=store)
    manifest = a_manifest(
        name="findings", task="multilabel", classes=("a", "b", "c"), shape=(8, 8, 1), splits=splits
    )
    return written(store, manifest)


def run(
    dataset: str, output: str, recipe: Recipe = RECIPE, *, ranks: int, meddling: Sequence[Meddling] = ()
) -> Ended:
    """Train with `ranks` processes until all have ended."""
    folder = Path(output if output.startswith("/") else dataset).parent
    files = [folder / f"error-{rank}.json" for rank in range(ranks)]
    port = free_port()
    processes = [
        PROCESSES.Process(
            target=train_as_rank,
            args=(environment_of_rank(rank, ranks, port, files[rank]), meddling, dataset, output, recipe),
        )
        for rank in range(ranks)
    ]
    for file in files:
        file.unlink(missing_ok=True)
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    errors = [json.loads(file.read_text())["message"]["extraInfo"] if file.exists() else {} for file in files]
    return Ended([process.exitcode for process in processes], errors)


def trained(dataset: str, output: str, recipe: Recipe = RECIPE, *, ranks: int) -> Checkpoint:
    """The last state of a training that ran through."""
    assert run(dataset, output, recipe, ranks=ranks).codes == [0] * ranks
    return final(output)


def final(output: str) -> Checkpoint:
    """The newest checkpoint of a training."""
    checkpoint = latest(open_store(output))
    assert checkpoint
    return checkpoint


def losses(output: str) -> list[float]:
    """The training loss of every step."""
    events = EventAccumulator(f"{output}/tensorboard").Reload()
    return [event.value for event in events.Scalars("step/loss")]


def same_bits(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether weights, optimizer and step are equal bit for bit."""
    return one.step == other.step and _equal(one.states, other.states)


def record(output: str) -> dict[str, Any]:
    """The content of training.json."""
    content: dict[str, Any] = json.loads(open_store(output).read("training.json"))
    return content


def environment_of_rank(rank: int, ranks: int, port: int, error_file: Path) -> dict[str, str]:
    group = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    own = {"TORCHELASTIC_ERROR_FILE": str(error_file)}
    return {**os.environ, **own, **({name: str(value) for name, value in group.items()} if ranks > 1 else {})}


def _equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
