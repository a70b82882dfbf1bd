"""How many processes train fastest on this machine: the first steps with each number are timed.

<output>/paces.json    {"1": 480.0, "2": 730.0}: processes, and images that they train in a second

A training that is to find this out begins with one process. Once its pace is steady, and enough of it is
left, it saves and ends, and is started again with twice as many processes, as long as that is faster and
there are processors for them. It continues with the fastest number. Nothing is trained twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ddpipe.errors import NoSuchObject
from ddpipe.processes.machine import cpus
from ddpipe.storage import Store
from ddpipe.train.constants import LAUNCHES_WORTH, PACE_GAIN

if TYPE_CHECKING:
    from ddpipe.distributed import World
    from ddpipe.train.loop import Trainer
    from ddpipe.train.saver import Uploads

PACES = "paces.json"

_log = logging.getLogger(__name__)


def paces_of(store: Store) -> dict[int, float]:
    """What has been timed: images per second by the number of processes; empty if the file is damaged."""
    try:
        return {int(number): float(pace) for number, pace in json.loads(store.read(PACES)).items()}
    except (AttributeError, NoSuchObject, OverflowError, RecursionError, TypeError, ValueError):
        return {}


def next_number(paces: Mapping[int, float], most: int) -> int:
    """How many processes are to train next: twice the fastest number if that is to be timed, or the fastest.

    {} 1, {1: 480} 2, {1: 480, 2: 730} 4, {1: 480, 2: 490} 1, as it has to be faster by `PACE_GAIN`. Numbers
    above `most` do not count: the file may come from a larger machine.
    """
    fastest = 1
    for number in sorted(number for number in paces if 1 < number <= most):
        if paces[number] > PACE_GAIN * paces.get(fastest, 0.0):
            fastest = number
    twice = 2 * fastest
    return twice if fastest in paces and twice not in paces and twice <= most else fastest


class PaceTimer:
    """Called before each step on rank 0: asks to be started again when another number is to train."""

    def __init__(
        self, store: Store, world: World, uploads: Uploads, launch: float, restart: Callable[[], None]
    ) -> None:
        """`launch` is what it costs to start processes, in seconds."""
        self._store, self._uploads, self._launch, self._restart = store, uploads, launch, restart
        self._size, self._paces = world.size, paces_of(store)
        self._is_done = self._size in self._paces or world.device.type != "cpu"  # a GPU has one process

    def __call__(self, trainer: Trainer) -> None:
        """Time the steps so far."""
        left = None if self._is_done else trainer.timetable.seconds_left(trainer.step)
        pace = trainer.timetable.pace
        if not left or not pace:
            return
        self._is_done = True
        if left < LAUNCHES_WORTH * self._launch:
            _log.info("processes: %d; too little is left to compare others", self._size)
            return
        self._paces[self._size] = round(1 / pace, 1)
        content = json.dumps(self._paces).encode()
        self._uploads.put(PACES, partial(self._store.write, PACES, content))
        number = next_number(self._paces, cpus())
        timed = ", ".join(f"{pace:,.1f} with {number}" for number, pace in sorted(self._paces.items()))
        _log.info("images per second by processes: %s; training continues with %d", timed, number)
        if number != self._size:
            self._restart()
