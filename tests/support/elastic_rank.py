"""A rank of ddpipe's training on one of several nodes that come and go: see test_elasticity.

It stops twice, where the test can act on it: alone, until another node joins; and, on the node that is to be
lost, amid the training together.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ddpipe.train.__main__ import main
from ddpipe.train.loader import Batch
from ddpipe.train.loop import Trainer

ALONE, TOGETHER = 10, 25
"""The steps before which it stops."""


def stop_before(step: int, marker: Path) -> None:
    """Write this process's id into `marker` before it takes the step, and wait for a signal."""
    take = Trainer._take

    def meddled(trainer: Trainer, number: int, batch: Batch) -> None:
        if trainer.step == step and not marker.exists():
            marker.write_text(str(os.getpid()))
            signal.pause()
        take(trainer, number, batch)

    Trainer._take = meddled  # type: ignore[method-assign]


if __name__ == "__main__":
    folder = Path(os.environ["ELASTIC_MARKERS"])
    if os.environ["WORLD_SIZE"] == "1":
        stop_before(ALONE, folder / "alone")
    elif os.environ["ELASTIC_NODE"] == "lost":
        stop_before(TOGETHER, folder / "together")
    main()
