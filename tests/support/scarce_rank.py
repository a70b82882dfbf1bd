"""Ranks of which the last lacks memory in fewer than LEAST parts: torch says so, or it is killed (HOW).

Rank 1 had `HELD` bytes more than the others at its start.
"""

from __future__ import annotations

import os
import signal

import torch
from training_ranks import train_from_command_line

from ddpipe.train.loop import Trainer

HELD = 2**30


class Scarce:
    """Too little memory on the last rank."""

    def __call__(self) -> None:
        if os.environ["RANK"] == "1":
            _ = b"x" * HELD

    def before_step(self, trainer: Trainer) -> None:
        if (
            int(os.environ["RANK"]) + 1 < int(os.environ["WORLD_SIZE"])
            or trainer.step < 7
            or trainer._training_step._parts >= int(os.environ["LEAST"])
        ):
            return
        if os.environ["HOW"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


if __name__ == "__main__":
    train_from_command_line([Scarce()])
