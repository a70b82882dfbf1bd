"""Ranks that train as many images in a second as PACES says for their number, from a few steps on."""

from __future__ import annotations

import json
import os

from training_ranks import train_from_command_line

from ddpipe.train import paces
from ddpipe.train.timetable import Timetable

STEADY = 5


def be_paced() -> None:
    known = json.loads(os.environ["PACES"])
    pace = 1 / known[os.environ["WORLD_SIZE"]]

    def seconds_left(table: Timetable, step: int) -> float | None:
        return 1000.0 if step - table._start >= STEADY else None

    Timetable.seconds_left = seconds_left  # type: ignore[method-assign]
    Timetable.pace = pace  # type: ignore[assignment,method-assign]
    paces.LAUNCHES_WORTH = 0  # type: ignore[misc]
    paces.cpus = lambda: len(known)


if __name__ == "__main__":
    train_from_command_line([be_paced])
