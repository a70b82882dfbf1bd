"""Waiting for a run on a server: what is printed while it runs, and what its end means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ddpipe.engine.client import Engine
from ddpipe.engine.runs import RunState, conclude, follow
from ddpipe.errors import Interrupted
from ddpipe.processes.signals import on_stop


def followed(engine: Engine, run_id: str, say: Callable[[str], object]) -> RunState:
    """Wait for a run to succeed and return its state. A stop signal ends the waiting, not the run."""

    def leave() -> NoReturn:
        raise Interrupted(
            what="waiting for the run was interrupted",
            which=engine.link(run_id),
            seen="the run continues",
            do=f"To wait again: `ddpipe runs show {run_id} --wait`; to stop it: `ddpipe runs stop {run_id}`.",
        )

    with on_stop(leave):
        state = follow(engine, run_id, say)
    conclude(engine, state)
    return state
