"""What a forked rank of a test does: train, after meddling with itself.

Apart from `training_runs`, so that a rank imports no more than it needs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from recipes import plain
from stored import latest
from torch import nn
from torchvision.models import swin_transformer, vision_transformer

from ddpipe.data.reader import SplitReader
from ddpipe.data.shards import Images
from ddpipe.distributed import run_rank
from ddpipe.errors import CheckpointError, DdpipeError
from ddpipe.model import networks, tensors
from ddpipe.processes.local import run_local
from ddpipe.storage import Store
from ddpipe.storage.files import FileStore
from ddpipe.train import fully_sharded, loop
from ddpipe.train.__main__ import main
from ddpipe.train.batches import Indices
from ddpipe.train.loop import Trainer
from ddpipe.train.recipe import Recipe
from ddpipe.train.timetable import Timetable
from ddpipe.train.train import train

Meddling = Callable[[], None]
"""What a rank does to itself before it trains, and before each step if it has `before_step`; picklable."""


def train_as_rank(
    environment: dict[str, str], meddling: Sequence[Meddling], dataset: str, output: str, recipe: Recipe
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    _train(meddling, dataset, output, recipe)


def train_from_command_line(meddling: Sequence[Meddling]) -> None:
    """What `python -m ddpipe.train` does, with the options of its command line, after meddling."""
    given = main.make_context("train", sys.argv[1:]).params
    recipe, finds = Recipe.from_json(given["recipe"]), given["find_processes"]
    _train(meddling, given["dataset"], given["output"], recipe, finds_processes=finds)


def _train(
    meddling: Sequence[Meddling], dataset: str, output: str, recipe: Recipe, *, finds_processes: bool = False
) -> None:
    for meddle in meddling:
        meddle()
    hooks = [meddle.before_step for meddle in meddling if hasattr(meddle, "before_step")]

    def before_step(trainer: Trainer) -> None:
        for hook in hooks:
            hook(trainer)

    run_rank(lambda: train(dataset, output, recipe, finds_processes=finds_processes, before_step=before_step))


def train_endlessly(dataset: str, output: str) -> None:
    """Start a training of two ranks through torchrun, and end with its exit code."""
    arguments = ["--dataset", dataset, "--output", output, "--recipe", plain(epochs=100_000).to_json()]
    try:
        run_local("ddpipe.train", arguments, processes=2)
    except DdpipeError as error:
        raise SystemExit(error.exit_code) from error


@dataclass(frozen=True)
class SignalAtStep:
    """One rank gets a signal when it is about to take a step.

    Attributes:
        rank: Which.
        step: From 0.
        number: The signal.
        stored: The signal waits until a checkpoint of a later step than this one is stored; None: of none.
    """

    rank: int
    step: int
    number: signal.Signals
    stored: int | None = None

    def __call__(self) -> None:
        """Nothing needs to be patched."""

    def before_step(self, trainer: Trainer) -> None:
        if (_own_rank(), trainer.step) == (self.rank, self.step):
            while self.stored is not None and _stored_step(trainer._store) <= self.stored:
                time.sleep(0.01)
            os.kill(os.getpid(), self.number)


def _stored_step(store: Store) -> int:
    """The step of the newest checkpoint that another thread or process has written; -1 if there is none."""
    try:
        checkpoint = latest(store)
    except CheckpointError:  # it went while it was read
        return -1
    return checkpoint.step if checkpoint else -1


@dataclass(frozen=True)
class KilledBeforeWriting:
    """Rank 0 is killed when it is about to write the `time`-th object of a name."""

    name: str
    time: int

    def __call__(self) -> None:
        write, seen = FileStore.write, [0]

        def meddled(store: FileStore, key: str, data: bytes) -> None:
            seen[0] += key.endswith(self.name)
            if seen[0] == self.time:
                os.kill(os.getpid(), signal.SIGKILL)
            write(store, key, data)

        FileStore.write = meddled  # type: ignore[method-assign]


class SlowStore:
    """Writing takes longer than a rank needs to end."""

    def __call__(self) -> None:
        write = FileStore.write

        def meddled(store: FileStore, key: str, data: bytes) -> None:
            time.sleep(1)
            write(store, key, data)

        FileStore.write = meddled  # type: ignore[method-assign]


@dataclass(frozen=True)
class RecordsSamples:
    """Every rank notes the sample ids that it reads, one JSON list per batch, in a file of its own."""

    folder: Path

    def __call__(self) -> None:
        images = SplitReader.images

        def meddled(reader: SplitReader, indices: Indices) -> Images:
            with (self.folder / f"rank-{_own_rank()}.jsonl").open("a") as file:
                file.write(json.dumps([reader.sample_ids[index] for index in indices]) + "\n")
            return images(reader, indices)

        SplitReader.images = meddled  # type: ignore[method-assign]


class NoisyNetwork:
    """The network keeps batch statistics and draws random numbers: what most spoils a resumed run."""

    def __call__(self) -> None:
        def build(_shape: networks.Shape, classes: int) -> nn.Module:
            convolution = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
            return nn.Sequential(convolution, nn.Dropout(), nn.Flatten(), nn.Linear(8 * 9, classes))

        networks.digits_cnn = build


class NormalizedNetwork:
    """The network normalizes by the statistics of the batch."""

    def __call__(self) -> None:
        def build(_shape: networks.Shape, classes: int) -> nn.Module:
            convolution = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
            return nn.Sequential(convolution, nn.Flatten(), nn.Linear(8 * 9, classes))

        networks.digits_cnn = build


class TiedNetwork:
    """Two layers of the network share their weights."""

    def __call__(self) -> None:
        def build(_shape: networks.Shape, classes: int) -> nn.Module:
            first, second = nn.Linear(64, 64), nn.Linear(64, 64)
            second.weight = first.weight
            return nn.Sequential(nn.Flatten(), first, second, nn.Linear(64, classes))

        networks.digits_cnn = build


@dataclass(frozen=True)
class RecordsStatistics:
    """Every rank notes the running statistics of its network when it begins to validate."""

    folder: Path

    def __call__(self) -> None:
        validate = Trainer._validate

        def meddled(trainer: Trainer) -> dict[str, float]:
            buffers = {name: value.tolist() for name, value in trainer.classifier.named_buffers()}
            with (self.folder / f"rank-{_own_rank()}.jsonl").open("a") as file:
                file.write(json.dumps(buffers) + "\n")
            return validate(trainer)

        Trainer._validate = meddled  # type: ignore[method-assign]


class FewBlocks:
    """Torchvision's transformers have fewer and narrower blocks of the same kinds."""

    def __call__(self) -> None:
        vit, swin = vision_transformer._vision_transformer, swin_transformer._swin_transformer
        vision_transformer._vision_transformer = lambda **given: vit(**given | {"num_layers": 2})
        swin_transformer._swin_transformer = lambda **given: swin(
            **given | {"embed_dim": 48, "depths": [2, 2, 2, 2]}
        )


class TravellingTensors:
    """Tensors of a few values already count as large: no rank has those of which it needs a share only."""

    def __call__(self) -> None:
        fully_sharded.LARGE_TENSOR = 16


@dataclass(frozen=True)
class LargeNetwork:
    """A network with so many bytes of weights, nearly all of them in layers of 4 MiB."""

    bytes: int

    def __call__(self) -> None:
        def build(_shape: networks.Shape, classes: int) -> nn.Module:
            hidden = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(self.bytes >> 22)]
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), *hidden, nn.Linear(1024, classes))

        networks.digits_cnn = build


@dataclass(frozen=True)
class LimitedMemory:
    """A rank gets no more private memory than so many bytes beyond what it has when it starts.

    Files that are mapped do not count: the system can write them back and use their memory.
    """

    bytes: int

    def __call__(self) -> None:
        tensors.PIECE_BYTES = 2**23
        (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if "VmData" in one]
        limit = 1024 * int(line.split()[1]) + self.bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class SecondsOfAStep:
    """The timetable's clock counts steps: one takes so many seconds on rank 0, and twice as many on rank 1.

    So a test knows which steps fit into a budget, however fast the machine is.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._now = seconds, 0.0

    def __call__(self) -> None:
        loop.Timetable = partial(Timetable, clock=lambda: self._now)  # type: ignore[assignment,misc]

    def before_step(self, _trainer: Trainer) -> None:
        self._now += self._seconds * (1 + _own_rank())


class BrokenNetwork:
    """From the fifth step on, the network gives no numbers."""

    def __call__(self) -> None:
        """Nothing needs to be patched."""

    def before_step(self, trainer: Trainer) -> None:
        if trainer.step == 4:
            with torch.no_grad():
                next(trainer.classifier.parameters()).fill_(float("nan"))


def _own_rank() -> int:
    return int(os.environ.get("RANK", "0"))
