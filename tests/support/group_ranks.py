"""What a forked rank of a test does in its process group: come, differ, stall, freeze or die."""

from __future__ import annotations

import os
import signal
import time

from ddpipe.distributed import World, process_group, roll_call, run_rank
from ddpipe.errors import ParameterError

FOREVER = 600


def come_as_rank(
    environment: dict[str, str], card: dict[str, str], times: tuple[float, float], act: str
) -> None:
    """Join the others and meet them at two barriers; act before the second."""
    os.environ.clear()
    os.environ.update(environment)
    join, stall = times

    def body() -> None:
        with process_group(card, join=join) as world:
            world.barrier()
            world.wait_at_most(stall)
            ACTS[act](world)
            world.barrier()

    run_rank(body)


def join_twice(environment: dict[str, str]) -> None:
    """Open two groups, one after the other; rank 0 stays in the first for longer than the others."""
    os.environ.clear()
    os.environ.update(environment)

    def body() -> None:
        for _ in range(2):
            with process_group() as world:
                world.barrier()
                time.sleep(2 if world.is_main else 0)

    run_rank(body)


def stall_here(_world: World) -> None:
    roll_call.LEAVE = 3.0
    time.sleep(FOREVER)


def refuse_on_rank_0(world: World) -> None:
    def decide() -> None:
        raise ParameterError(what="rank 0 refuses", which="it", seen="nothing", do="Nothing.")

    world.decided(decide)


class Odd(ValueError):
    """An error of somebody's own."""


def fail_on_rank_1() -> None:
    with process_group() as world:
        if not world.is_main:
            raise Odd("rank 1 does not like it")
        world.barrier()


def die() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


ACTS = {
    "come along": lambda _: None,
    "stall": stall_here,
    "freeze": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "decide": refuse_on_rank_0,
}
