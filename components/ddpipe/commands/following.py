"""Waiting for a run: what is told meanwhile, and what its end means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ddpipe.engine.client import Engine
from ddpipe.engine.runs import RunState, conclude, follow
from ddpipe.errors import Interrupted
from ddpipe.processes.signals import on_stop


def followed(engine: Engine, run_id: str, say: Callable[[str], object]) -> RunState:
    """The state of a run that has succeeded; whoever is told to stop meanwhile leaves the run alone.

    Raises:
        RunFailed: It failed.
        RunStopped: It was stopped.
        Interrupted: This process is told to stop.
    """

    def leave() -> NoReturn:
        raise Interrupted(
            what="nobody waits for the run any more",
            which=engine.link(run_id),
            seen="it goes on",
            do=f"To wait again: ddpipe runs show {run_id} --wait; to stop it: ddpipe runs stop {run_id}",
        )

    with on_stop(leave):
        state = follow(engine, run_id, say)
    conclude(engine, state)
    return state
