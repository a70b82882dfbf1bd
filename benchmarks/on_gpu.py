"""Training on the GPUs of this machine: time to an accuracy, and throughput. `make bench-gpu` runs this.

    [DDPIPE_IMAGES=cifar10.tar.gz] [DDPIPE_RECORD=airbench94_muon.py] python benchmarks/on_gpu.py

Writes benchmarks/results/gpu.md. Throughput is compared with bare steps on a batch that is on the device
already: what a loop costs besides forward, backward and optimizer. $DDPIPE_IMAGES is an archive as for
bench_training.py; with it the time to 91 % of CIFAR-10 is measured. $DDPIPE_RECORD is the published
speed-record code (github.com/KellerJordan/cifar10-airbench), which runs next to it. This program
has not run on a GPU yet: please report its output.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from bench_training import ours, recipe_named, the_data
from photographs import table
from turns import run_in_turns

from ddpipe.data.index import described
from ddpipe.data.manifest import DatasetManifest, load_manifest, manifest_key
from ddpipe.data.reader import open_split
from ddpipe.data.shards import encode_jpegs, shard_key
from ddpipe.distributed import World
from ddpipe.storage import open_store
from ddpipe.train.loop import Trainer
from ddpipe.train.recipe import AT_FIRST, Recipe

RESULTS = Path(__file__).parent / "results" / "gpu.md"
GOAL = 0.91
CLASSES = 10
WARM_UP, STEPS, ROUNDS = 5, 20, 3


@dataclass(frozen=True)
class Case:
    """A network whose throughput is measured.

    Attributes:
        model: Its name.
        side: Of the images, in pixels.
        batch: Images of a step.
        compile: Whether torch compiles it.
    """

    model: str
    side: int
    batch: int
    compile: bool = False

    @property
    def title(self) -> str:
        """For the table."""
        return f"{self.model}, {self.side} pixels, batches of {self.batch}" + ", compiled" * self.compile


CASES = (
    Case("fast-cnn", 32, 500),
    Case("resnet18", 32, 512),
    Case("resnet50", 224, 128),
    Case("resnet50", 224, 128, compile=True),
    Case("vit_b_16", 224, 64),
)


def jpegs(folder: Path, case: Case, few: Sequence[bytes] = ()) -> str:
    """The manifest of a dataset of a few JPEGs, or random ones, enough for an epoch of every round."""
    store, generator = open_store(str(folder)), np.random.default_rng(0)
    few = few or [
        simplejpeg.encode_jpeg(
            np.kron(
                generator.integers(0, 256, (8, 8, 3), np.uint8),
                np.ones((case.side // 8,) * 2 + (1,), np.uint8),
            )
        )
        for _ in range(16)
    ]
    splits = {}
    for name, count in (("train", case.batch * (WARM_UP + STEPS)), ("validation", 16), ("test", 16)):
        shard, data = encode_jpegs([few[number % len(few)] for number in range(count)])
        store.write(shard_key(shard), data)
        ids = np.array([f"{name}{number}".encode() for number in range(count)])
        splits[name], objects = described([shard], ids, np.arange(count) % CLASSES, CLASSES)
        for key, content in objects.items():
            store.write(key, content)
    manifest = DatasetManifest(
        name="random",
        task="multiclass",
        classes=tuple(map(str, range(CLASSES))),
        shape=(case.side, case.side, 3),
        dtype="uint8",
        splits=splits,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        split_rule={"kind": "given"},
        seed=0,
        source={"kind": "random", "fingerprint": ""},
    )
    key = manifest_key(manifest.name, manifest.dataset_id)
    store.write(key, manifest.to_json().encode())
    return f"{store.uri}/{key}"


def throughput(
    manifest: str, case: Case, device: torch.device, rounds: int = ROUNDS
) -> tuple[float, float, float]:
    """Images per second of the loop and of bare steps, and the seconds that the first step took longer."""
    given = {"model": case.model, "batch_size": case.batch, "epochs": rounds + 1, "compile": case.compile}
    recipe = Recipe.from_dict({**AT_FIRST, **given})
    splits = {name: open_split(manifest, name) for name in ("train", "validation")}
    world = World(0, 1, device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(recipe, load_manifest(manifest), splits, open_store(folder), world, saver=None)
    step: Any = trainer._training_step
    loop: list[float] = []
    bare: list[float] = []
    first = 0.0
    for epoch in range(rounds):
        batches = trainer._batches(epoch, 0)
        for number in range(WARM_UP):
            kept, began = next(batches), clock(device)
            trainer.take(number, kept)
            first = first or clock(device) - began
        began = clock(device)
        for number in range(STEPS):
            trainer.take(number, next(batches))
        loop.append((clock(device) - began) / STEPS)
        began = clock(device)
        for _ in range(STEPS):
            step.optimizer.zero_grad()
            with step.autocast():
                logits = step.strategy.model(kept.images)
            trainer._objective.losses(logits.float(), kept.labels).mean().backward()
            step.optimizer.step()
        bare.append((clock(device) - began) / STEPS)
    return case.batch / statistics.median(loop), case.batch / statistics.median(bare), first - min(loop)


def clock(device: torch.device) -> float:
    """The time, when the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def throughputs(cases: Sequence[Case], device: torch.device) -> str:
    """The table of all cases."""
    rows: list[tuple[object, ...]] = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            loop, bare, start = throughput(jpegs(Path(folder), case), case, device)
        rows.append((case.title, f"{loop:,.0f}", f"{bare:,.0f}", f"{loop / bare:.2f}", f"{start:.1f}"))
    columns = (
        "what",
        "images/s from JPEG shards",
        "images/s on the device already",
        "ratio",
        "first step, seconds",
    )
    return table("Throughput of one process", columns, rows)


def time_to_goal(archive: Path, record: Path | None) -> str:
    """Time to 91 % of CIFAR-10, next to the published record if its code is given."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        data = the_data(archive, work, 10, quick=False)
        program = ours("ddpipe, recipe fast-32", data, work, recipe_named("fast-32"), processes=1)
        run_in_turns([program])
        reached = program.seconds_to(GOAL)
        rows: list[tuple[object, ...]] = [
            (
                program.name,
                f"{reached:.1f}" if reached else "never",
                f"{program.best:.4f}",
                f"{program.seconds:.1f}",
            )
        ]
    if record:
        began = time.monotonic()
        output = subprocess.run(
            [sys.executable, str(record)], check=True, capture_output=True, text=True
        ).stdout
        epochs = epochs_of(output)
        found = next((seconds for score, seconds in epochs if score >= GOAL), None)
        rows.append(
            (
                f"{record.name}, without start and compilation",
                f"{found:.1f}" if found else "never",
                f"{max((score for score, _ in epochs), default=0.0):.4f}",
                f"{time.monotonic() - began:.1f}",
            )
        )
    columns = ("what", f"seconds to {GOAL:.2f}", "best accuracy", "seconds in all, with the start")
    return table("Time to an accuracy", columns, rows)


def epochs_of(output: str) -> list[tuple[float, float]]:
    """Validation accuracy and seconds of each epoch, from the table that the record's code prints."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in output.splitlines()
        if line.startswith("|")
    ]
    names = next((row for row in rows if "val_acc" in row), None)
    if names is None:
        return []
    accuracy, seconds = names.index("val_acc"), len(names) - 1  # the time is the last column
    return [
        (float(row[accuracy]), float(row[seconds]))
        for row in rows
        if len(row) == len(names) and row[names.index("epoch")].isdecimal() and row[accuracy]
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the tables, or say why not."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args(
        arguments
    )
    if not torch.cuda.is_available():
        print("skipped: this benchmark needs a GPU, and torch finds none on this machine")  # noqa: T201
        return
    device = torch.device("cuda", 0)
    images, record = os.environ.get("DDPIPE_IMAGES"), os.environ.get("DDPIPE_RECORD")
    parts = [f"# On a GPU\n\n{torch.cuda.get_device_name(device)}, torch {torch.__version__}\n"]
    parts.append(throughputs(CASES, device))
    if images:
        parts.append(time_to_goal(Path(images), Path(record) if record else None))
    text = "\n".join(parts)
    RESULTS.write_text(text)
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
