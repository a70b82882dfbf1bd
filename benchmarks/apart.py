"""Two processes that train one model, next to the same two processes training a model each.

Blocks of steps take turns in the same two processes, each of them on a CPU of its own: a slow moment of the
machine falls on all ways alike.

    apart      each trains a model of its own, on its own images
    together   both train one model, by ddp, each with as many images of a step as apart
    meeting    as apart, but both wait for each other before each step, and exchange nothing

The last is the price of waiting on this machine: if it does other work, too, one of the two comes late at
every step.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WAYS = ("apart", "together", "meeting")

WARMING_UP = 3
"""Steps of each way before the first that counts."""

Block = tuple[float, float]
"""Seconds, and processor seconds, that one process needed for a block of steps."""


@dataclass(frozen=True)
class Share:
    """A way next to "apart", as medians over the rounds.

    Attributes:
        milliseconds: Of a step.
        images: Per second, both processes together, as a share of what they train apart.
        processor: Processor time of a step, as a multiple of apart.
    """

    milliseconds: float
    images: float
    processor: float


def shares(
    manifest: str, values: Mapping[str, object], *, images: int, rounds: int, block: int
) -> dict[str, Share]:
    """What each way reaches.

    Args:
        manifest: Of the dataset version; one epoch of it is enough for all blocks.
        values: Of the recipe.
        images: Of a step, per process.
        rounds: How often the ways take turns.
        block: Steps of a turn.
    """
    from ddpipe.distributed import spawn  # noqa: PLC0415 - the package is the benchmarked one

    taken = spawn(_turns, 2, manifest, dict(values), images, rounds, block)
    return {way: _share(taken[way], taken["apart"], block) for way in WAYS}


def _share(own: Sequence[Sequence[Block]], apart: Sequence[Sequence[Block]], block: int) -> Share:
    """A way next to apart; of each: for each round the blocks of both processes."""
    ends = [max(seconds for seconds, _ in both) for both in own]
    rates = [sum(1 / seconds for seconds, _ in both) for both in apart]
    return Share(
        milliseconds=1000 * statistics.median(ends) / block,
        images=statistics.median(2 / end / rate for end, rate in zip(ends, rates, strict=True)),
        processor=statistics.median(
            sum(processor for _, processor in one) / sum(processor for _, processor in other)
            for one, other in zip(own, apart, strict=True)
        ),
    )


def _turns(
    manifest: str, values: dict[str, object], images: int, rounds: int, block: int
) -> dict[str, list[list[Block]]]:
    """What a process does; for each way and round the blocks of both."""
    import torch  # noqa: PLC0415 - only the ranks need it
    from torch import distributed as dist  # noqa: PLC0415

    from ddpipe.distributed import World, process_group  # noqa: PLC0415

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    own: dict[str, list[Block]] = {way: [] for way in WAYS}
    with process_group() as world, tempfile.TemporaryDirectory() as folder:
        alone = World(0, 1, world.device)
        steps = {
            "apart": _steps(manifest, values, images, alone, f"{folder}/apart"),
            "together": _steps(manifest, values, images, world, f"{folder}/together"),
            "meeting": _steps(manifest, values, images, alone, f"{folder}/meeting"),
        }

        def take(way: str, count: int) -> None:
            for _ in range(count):
                if way == "meeting":
                    dist.barrier()
                next(steps[way])

        for way in WAYS:
            take(way, WARMING_UP)
        for number in range(rounds):
            for way in WAYS if number % 2 else WAYS[::-1]:
                dist.barrier()
                began, used = time.perf_counter(), time.process_time()
                take(way, block)
                own[way].append((time.perf_counter() - began, time.process_time() - used))
        both = world.collected(own)
    return {way: [list(pair) for pair in zip(*(one[way] for one in both), strict=True)] for way in WAYS}


def _steps(
    manifest: str, values: dict[str, object], images: int, world: object, folder: str
) -> Iterator[None]:
    """Take a step of a training whenever it is asked for the next."""
    from ddpipe.data.manifest import load_manifest  # noqa: PLC0415
    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.distributed import World  # noqa: PLC0415
    from ddpipe.storage import open_store  # noqa: PLC0415
    from ddpipe.train.loop import Trainer  # noqa: PLC0415
    from ddpipe.train.recipe import Recipe  # noqa: PLC0415
    from ddpipe.train.timetable import Watch  # noqa: PLC0415

    assert isinstance(world, World)
    recipe = Recipe.from_dict(values | {"batch_size": images * world.size})
    splits = {name: open_split(manifest, name) for name in ("train", "validation")}
    trainer = Trainer(recipe, load_manifest(manifest), splits, open_store(folder), world, saver=None)
    watch = Watch(60)
    for number, batch in enumerate(trainer._batches(0, 0)):
        trainer.poll(watch)
        trainer.take(number, batch)
        yield
