"""How many steps a training takes and how long they take: fixed by the epochs, or by a budget of minutes.

Work is counted in images trained at full size. A smaller image counts by its pixels, an image that is only
scored by `SCORING_WORK`. The first steps of a process show what a unit of work costs here.

With a budget, the number of steps is not known before that. It is decided after the first steps, so that the
whole run ends in time, and again whenever a twentieth of the rest is done, at the end after each step: a
shared machine becomes slower and faster. Learning rate and resolution of a step follow the last decision
before it. The decisions are part of the checkpoint, and a resumed training continues with them:

    [[0, 20000], [4, 700], [38, 690]]    from step 0 on 20,000 steps, from step 4 on 700, from step 38 on 690

What evaluation and export will need is known from the launch of this process, and changes with the pace since
then. The first steps of a busy machine can be the slowest ones: so at most half of the time that there is is
reserved for it, and a training decides again at its last step. It ends when the time is up, not when earlier
steps said it would be.

A training also stops when its epochs get no better, and when it is asked to: each rank sees its own signals
and clock, and all act on the same step.
"""

from __future__ import annotations

import bisect
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ddpipe.distributed import STALL, World
from ddpipe.model import PASSES
from ddpipe.processes.machine import on_stop
from ddpipe.processes.reports import duration
from ddpipe.train import constants
from ddpipe.train.batches import images_seen, steps_per_epoch
from ddpipe.train.recipe import Recipe

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """What a training consists of; `initial` is the share of the images' sides in the first steps."""

    images: int
    batch_size: int
    validation: int
    initial: float = 1.0

    @classmethod
    def planned(cls, recipe: Recipe, images: int, validation: int) -> TrainingWork:
        """The work that a recipe asks for."""
        return cls(images, recipe.batch_size, validation, recipe.initial_resolution)

    def done(self, step: int, steps: int) -> float:
        """The work of the first `step` steps of a training of `steps`."""
        small = min(step, math.ceil(constants.FULL_RESOLUTION_FROM * steps))
        epochs = step / steps_per_epoch(self.images, self.batch_size)
        scorings = math.ceil(epochs) if step == steps else math.floor(epochs)
        saved = (1 - self.initial**2) * self._seen(small)
        return self._seen(step) - saved + constants.SCORING_WORK * self.validation * scorings

    def left(self, step: int, steps: int) -> float:
        """The work of all later steps."""
        return self.done(steps, steps) - self.done(step, steps)

    def fitting(self, step: int, work: float, most: int) -> int:
        """The largest number of steps that fits."""
        fits = bisect.bisect_right(range(step, most + 1), work, key=lambda steps: self.left(step, steps))
        return step + max(0, fits - 1)

    def _seen(self, step: int) -> int:
        return images_seen(step, self.images, self.batch_size)


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds of the whole run, those used before this process was ready, and those of its own launch."""

    seconds: float
    used: float
    launch: float
    # Images that the network computes in evaluation and export, each as often as it does, and times how much
    # less than the training they have: they run in one process.
    scored: int
    least: float = 0.0  # seconds of a launch on a processor of its own

    def later(self, pace: float, slower: float = 1.0) -> float:
        """Seconds for evaluation and export; a unit of work takes `pace`, so much more than at the launch."""
        # Beside others that slowed training to a sixth, and to a tenth, one took 1.6 and 4 times as long.
        launches = constants.LAUNCHES_LATER * max(self.least, self.launch * math.sqrt(slower))
        return launches + constants.SCORING_WORK * self.scored * pace


def scored_later(test: int, validation: int, views: str) -> int:
    """How many images the network computes after training: for scores, and to compare the exported model."""
    return PASSES[views] * (test + validation + test)


class Timetable:
    """The number of steps of a training, and the time that they take in this process."""

    def __init__(
        self,
        work: TrainingWork,
        epochs: int,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan the steps of so many epochs; with a budget as many as ever make sense, until it is decided."""
        self._per_epoch = steps_per_epoch(work.images, work.batch_size)
        self.most = max(constants.MOST_EPOCHS * self._per_epoch, constants.MOST_STEPS)
        self.schedule = [[0, self.most if budget else epochs * self._per_epoch]]
        self._work, self._budget, self._clock = work, budget, clock
        self._began, self._start = clock(), 0
        self._marks: deque[tuple[float, float, int]] = deque(maxlen=constants.TIMES_KEPT)
        self._is_announced = False
        self._launch_pace = 0.0  # the pace within as many seconds after it

    @property
    def steps(self) -> int:
        """The number of steps that was decided last."""
        return self.schedule[-1][1]

    def steps_at(self, step: int) -> int:
        """The number of steps that counted when a step was taken, counted from 0."""
        return [steps for first, steps in self.schedule if first <= step][-1]

    def resume(self, step: int, schedule: Sequence[Sequence[int]]) -> None:
        """Continue at a step, with the decisions of earlier processes."""
        self._start = step
        self.schedule = [list(one) for one in schedule] or self.schedule

    def done(self, step: int) -> tuple[int, int]:
        """The work of so many steps, and of all."""
        return round(self._work.done(step, self.steps)), round(self._work.done(self.steps, self.steps))

    def tick(self, step: int, world: World) -> None:
        """Note that so many steps have been taken, and decide how many there are, if it is time to."""
        here = step - self._start
        # Not before the first step, which prepares kernels; then so that the times kept reach far back.
        if not self._marks or here > constants.MARKS_GROW_BY * (self._marks[-1][2] - self._start):
            self._mark(step)
        if self._budget and here > 1 and step >= self._next_decision():  # before, the pace is not known
            self._mark(step)
            # Clocks of ranks differ, and all must take the same number of steps: rank 0 decides.
            steps = world.decided(lambda: self._decided(step))
            self.schedule.append([step, steps])
        if not self._is_announced and (left := self.seconds_left(step)):
            self._is_announced = True
            if world.is_main:
                _log.info("about %s to train %s more steps", duration(left), f"{self.steps - step:,}")

    @property
    def pace(self) -> float | None:
        """Seconds for a unit of work, over the last quarter of the time measured; None if it is not known."""
        return self._paces()[1] or None if self._marks else None

    def seconds_left(self, step: int) -> float | None:
        """Until all steps are taken; None while the pace is not steady, or known for too short a time."""
        if step - self._start < constants.ESTIMATE_STEPS:
            return None
        # The first half of the time measured says nothing: another program may have ended, or begun.
        early, late = self._paces()
        if max(early, late) >= constants.ESTIMATE_RATIO * min(early, late):
            return None
        left = late * self._work.left(step, self.steps)
        least, most = constants.ESTIMATE_SECONDS
        enough = min(max(least, left / constants.ESTIMATE_PART), most)
        return left if self._marks[-1][0] - self._marks[0][0] >= enough else None

    def _next_decision(self) -> int:
        first, steps = self.schedule[-1]
        part = min(first, (steps - first) // constants.DECISION_PART)  # the pace of few steps may be far off
        return first + max(1, part) if first else constants.STEPS_BEFORE_FIRST_DECISION

    def _decided(self, step: int) -> int:
        """How many steps fit; as many as before if the pace is not known."""
        pace, budget = self.pace, self._budget
        if not pace or not budget:
            return self.steps
        there_is = constants.BUDGET_PART * budget.seconds - budget.used
        later = budget.later(pace, slower=pace / self._launch_pace)
        left = there_is - min(later, there_is / 2) - (self._clock() - self._began)
        steps = self._work.fitting(step, left / pace, self.most)
        if steps < self._per_epoch and len(self.schedule) == 1:
            _log.warning(
                "%g minutes are too short for this data on this machine: about %d steps, less than an epoch",
                budget.seconds / 60,
                steps,
            )
        return steps

    def _mark(self, step: int) -> None:
        """Note the time and the work until now."""
        if self._marks and self._marks[-1][2] == step:
            return
        before, last = (self._marks[-1][1], self._marks[-1][2]) if self._marks else (0.0, step)
        work = before + self._work.done(step, self.steps) - self._work.done(last, self.steps)
        self._marks.append((self._clock(), work, step))
        passed = self._marks[-1][0] - self._began
        if self._budget and (not self._launch_pace or passed < self._budget.launch):
            self._launch_pace = self.pace or 0.0

    def _paces(self) -> tuple[float, float]:
        """Seconds for a unit of work in the last two quarters of the time measured; 0 where not known."""
        first, last = self._marks[0], self._marks[-1]
        start, middle = (
            max(mark for mark in self._marks if mark[0] <= first[0] + part * (last[0] - first[0]))
            for part in (1 / 2, 3 / 4)
        )
        early, late = (
            (end[0] - begin[0]) / (end[1] - begin[1]) if end[1] > begin[1] else 0.0
            for begin, end in ((start, middle), (middle, last))
        )
        return early, late


History = Sequence[Mapping[str, Any]]  # one record for each finished epoch


class TrainingRequest(IntEnum):
    """What to do before the next step; the largest among the ranks counts."""

    CONTINUE = 0
    SAVE = 1
    RESTART = 2  # save and end, as another number of processes continues
    STOP = 3


class Watch:
    """Watches for SIGTERM, SIGINT, a parent that is gone, and the time of the next checkpoint."""

    def __init__(self, minutes: float) -> None:
        """Ask for a checkpoint `minutes` after the last one."""
        self._minutes = minutes
        self._requested = TrainingRequest.CONTINUE
        self._parent = os.getppid()
        self._polled, self._pause, self._left = time.monotonic(), 0, 0
        self.saved()

    def request(self, request: TrainingRequest = TrainingRequest.STOP) -> None:
        """Ask for it at the next step."""
        self._requested = max(self._requested, request)

    def saved(self) -> None:
        """A checkpoint has been written: restart the clock."""
        self._next = time.monotonic() + 60 * self._minutes

    def agreed(self, world: World) -> TrainingRequest:
        """The most urgent request of any rank before a step; the same on all ranks.

        To ask the others costs as much as a tenth of a short step. So ranks pause between two polls, for as
        many steps as the slowest of them takes in `POLL_SECONDS`: one word carries the request and the pause.
        """
        if self._left:
            self._left -= 1
            return TrainingRequest.CONTINUE
        now, most = time.monotonic(), constants.MOST_UNPOLLED
        due = TrainingRequest.SAVE if now >= self._next else TrainingRequest.CONTINUE
        own = max(self._requested, due)
        # An orphan is adopted by another process: torchrun was killed before it could forward a signal.
        if os.getppid() != self._parent:
            own = TrainingRequest.STOP
        if world.size == 1:
            return own
        step = max(now - self._polled, 1e-6) / (self._pause + 1)
        seconds = min(constants.POLL_SECONDS, max(0.0, self._next - now))
        pause = min(most, 2 * self._pause + 1, int(seconds / step))
        request, short = divmod(world.max(own * (most + 1) + most - pause), most + 1)
        self._polled, self._pause = now, most - short
        self._left = self._pause
        return TrainingRequest(request)


class Patience:
    """How long ranks wait for each other: by recent steps, or `STALL` around checkpoints and reads."""

    def __init__(self, world: World, *, may_shorten: bool) -> None:
        """The ranks agree on whether to shorten it."""
        self._world, self._may_shorten = world, may_shorten
        self._steps: deque[float] = deque(maxlen=constants.PATIENCE_STEPS)
        self._last: float | None = None
        self._seconds = STALL

    def stepped(self) -> None:
        """A step has been taken, so no rank is behind the last work that takes long."""
        now = time.monotonic()
        if self._last is not None:
            self._steps.append(now - self._last)
        self._last = now
        if self._may_shorten and len(self._steps) == constants.PATIENCE_STEPS:
            self._set(max(constants.LEAST_PATIENCE, constants.PATIENCE_RATIO * max(self._steps)))

    def extend(self) -> None:
        """What follows may take long."""
        self._last = None
        self._set(STALL)

    def _set(self, seconds: float) -> None:
        if seconds != self._seconds:
            self._seconds = seconds
            self._world.wait_at_most(seconds)


@contextmanager
def watching(minutes: float) -> Iterator[Watch]:
    """Turn SIGTERM and SIGINT into requests; a thread other than the main one gets none."""
    watch = Watch(minutes)
    with on_stop(watch.request):
        yield watch


def best_epoch(history: History, metric: str) -> int:
    """The place in the history of the first epoch with the largest value of a metric."""
    return max(range(len(history)), key=lambda place: history[place][metric])


def out_of_patience(history: History, metric: str, patience: int) -> bool:
    """Whether a metric has not improved for too long."""
    return 0 < patience < len(history) - best_epoch(history, metric) if history else False
