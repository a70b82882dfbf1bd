"""Functions as ranks, from a notebook or a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_ranks import Odd, die, fail_on_rank_1

from ddpipe.distributed import spawn
from ddpipe.errors import ParameterError, TrainingError


def as_in_a_notebook(source: str) -> Callable[..., Any]:
    """A function that no other process can import."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(source, names)  # noqa: S102 - a cell of a notebook
    function: Callable[..., Any] = names["work"]
    return function


CELL = """
from ddpipe.distributed import process_group
import torch

def work(start):
    with process_group() as world:
        total = world.sum(torch.tensor([start + world.rank]))
        return world.size, total.item()
"""


@pytest.mark.slow
def test_a_notebooks_function_runs_as_every_rank_and_rank_0_answers() -> None:
    assert spawn(as_in_a_notebook(CELL), 2, 10) == (2, 21)


@pytest.mark.slow
def test_the_error_of_the_first_failing_rank_is_raised_as_it_is() -> None:
    with pytest.raises(Odd, match="rank 1 does not like it"):
        spawn(fail_on_rank_1, 2)


@pytest.mark.slow
def test_a_killed_rank_is_named() -> None:
    with pytest.raises(TrainingError, match="rank 1: SIGKILL ended it"):
        spawn(die, 2)


def test_no_processes_are_refused() -> None:
    with pytest.raises(ParameterError, match="0 processes"):
        spawn(die, 0)
