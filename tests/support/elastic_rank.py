"""A rank of ddpipe's training on one of several nodes that come and go: see test_elasticity.

It stops twice, where the test can act on it: alone, until another node joins; and, on the node that is to be
lost, while they train together.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from training_ranks import train_from_command_line

from ddpipe.train.loop import Trainer

ALONE, TOGETHER = 10, 25
"""The steps before which it stops."""


@dataclass(frozen=True)
class StopsBefore:
    """Before it takes a step, this process writes its id into a file and waits for a signal."""

    step: int
    marker: Path

    def __call__(self) -> None:
        """Nothing needs to be patched."""

    def before_step(self, trainer: Trainer) -> None:
        if trainer.step == self.step and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            signal.pause()


if __name__ == "__main__":
    folder = Path(os.environ["ELASTIC_MARKERS"])
    if os.environ["WORLD_SIZE"] == "1":
        train_from_command_line([StopsBefore(ALONE, folder / "alone")])
    elif os.environ["ELASTIC_NODE"] == "lost":
        train_from_command_line([StopsBefore(TOGETHER, folder / "together")])
    else:
        train_from_command_line([])
