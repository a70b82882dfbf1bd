"""How many steps a training takes and how long they take: fixed by the epochs, or by a budget of minutes.

Work is counted in images trained at full size. A smaller image counts by its pixels, an image that is only
scored by `SCORED`. The first steps of a process show what a unit of work costs here.

With a budget, the number of steps is not known before that. It is decided after `FIRST` steps, so that the
whole run ends in time, and again whenever a twentieth of the rest is done: a shared machine becomes slower
and faster. Learning rate and resolution of a step follow the last decision before it. The decisions are part
of the checkpoint, and a resumed training continues with them:

    [[0, 20000], [4, 700], [38, 690]]    from step 0 on 20,000 steps, from step 4 on 700, from step 38 on 690
"""

from __future__ import annotations

import bisect
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpipe.distributed import World
from ddpipe.model import PASSES
from ddpipe.train.loader import FULL_RESOLUTION_FROM
from ddpipe.train.order import images_seen, steps_per_epoch
from ddpipe.train.recipe import Recipe

SCORED = 1 / 3
"""Work of scoring an image: the forward pass alone, of three passes of about the same size."""

FIRST = 4
"""Steps before the first decision; the first one of a process is not counted: it prepares kernels."""

SHARE = 20
"""A decision counts until this part of the remaining steps is done."""

MARKS = 64
"""Times that are kept to measure the pace."""

MOST_EPOCHS, MOST_STEPS = 200, 2000
"""More than both of them improves no model: a longer budget is not used up."""

LAUNCHES = 4.0
"""Time that evaluation and export need beside scoring, in times that a training process needs to start."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """What a training consists of.

    Attributes:
        images: In the training split.
        batch_size: Of the global batch.
        validation: Images that are scored after each epoch.
        initial: Share of the images' sides in the first steps.
    """

    images: int
    batch_size: int
    validation: int
    initial: float = 1.0

    @classmethod
    def planned(cls, recipe: Recipe, images: int, validation: int) -> Work:
        """The work that a recipe asks for."""
        return cls(images, recipe.batch_size, validation, recipe.initial_resolution)

    def done(self, step: int, steps: int) -> float:
        """The work of the first `step` steps of a training of `steps`."""
        small = min(step, math.ceil(FULL_RESOLUTION_FROM * steps)) if self.initial < 1 else 0
        epochs = step / steps_per_epoch(self.images, self.batch_size)
        scorings = math.ceil(epochs) if step == steps else math.floor(epochs)
        saved = (1 - self.initial**2) * self._seen(small)
        return self._seen(step) - saved + SCORED * self.validation * scorings

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
    """The time that a run may take.

    Attributes:
        seconds: For the whole run, evaluation and export included.
        used: Before this process was ready to train.
        launch: That this process needed for that.
        scored: Images that the network computes in evaluation and export, each as often as it does.
    """

    seconds: float
    used: float
    launch: float
    scored: int

    def later(self, pace: float) -> float:
        """Seconds for evaluation and export, if a unit of work takes `pace` seconds."""
        return LAUNCHES * self.launch + SCORED * self.scored * pace


def scored_later(test: int, validation: int, views: str) -> int:
    """How many images the network computes after training: for scores, and to compare the exported model."""
    return PASSES[views] * (test + validation + test)


class Timetable:
    """The number of steps of a training, and the time that they take in this process.

    Attributes:
        schedule: The decisions so far: from which step on, how many steps.
    """

    def __init__(
        self,
        work: Work,
        epochs: int,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan the steps of so many epochs; with a budget as many as ever make sense, until it is decided."""
        per_epoch = steps_per_epoch(work.images, work.batch_size)
        self._most = max(MOST_EPOCHS * per_epoch, MOST_STEPS)
        self.schedule = [[0, self._most if budget else epochs * per_epoch]]
        self._work, self._budget, self._clock = work, budget, clock
        self._began, self._start = clock(), 0
        self._marks: deque[tuple[float, float, int]] = deque(maxlen=MARKS)

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
        if here == 1:
            self._mark(step)
        if self._budget and here > 1 and step >= self._next_decision():  # before, the pace is not known
            self._mark(step)
            steps = world.decided(lambda: self._decided(step, world))
            self.schedule.append([step, steps])
        if here == FIRST and world.is_main and step < self.steps:
            self._mark(step)
            _log.info("%s", self._expected(step))

    def _next_decision(self) -> int:
        first, steps = self.schedule[-1]
        return first + max(FIRST, (steps - first) // SHARE if first else 0)

    def _decided(self, step: int, world: World) -> int:
        """How many steps fit; as many as before if the pace is not known."""
        pace, budget = self._pace(), self._budget
        if not pace or not budget:
            return self.steps
        left = budget.seconds - budget.used - (self._clock() - self._began) - self._later(pace, world)
        steps = self._work.fitting(step, left / pace, self._most)
        is_short = left <= 0 or steps < steps_per_epoch(self._work.images, self._work.batch_size)
        if is_short and len(self.schedule) == 1:
            _log.warning(
                "%g minutes are too short for this data on this machine: the training ends after %d steps",
                budget.seconds / 60,
                steps,
            )
        return steps

    def _later(self, pace: float, world: World) -> float:
        # Evaluation and export run in one process.
        return self._budget.later(pace * world.size) if self._budget else 0.0

    def _mark(self, step: int) -> None:
        """Note the time and the work until now."""
        if self._marks and self._marks[-1][2] == step:
            return
        before, last = (self._marks[-1][1], self._marks[-1][2]) if self._marks else (0.0, step)
        work = before + self._work.done(step, self.steps) - self._work.done(last, self.steps)
        self._marks.append((self._clock(), work, step))

    def _pace(self) -> float | None:
        """Seconds for a unit of work, over the later half of the time measured; None if it is not known."""
        if len(self._marks) < 2:  # noqa: PLR2004
            return None
        end, done, _ = self._marks[-1]
        middle = (self._marks[0][0] + end) / 2
        begin, before, _ = max((mark for mark in self._marks if mark[0] <= middle), key=lambda mark: mark[0])
        return (end - begin) / (done - before) if done > before else None

    def _expected(self, step: int) -> str:
        """How long the training will take, in a sentence."""
        seconds = (self._pace() or 0.0) * self._work.left(step, self.steps)
        return f"about {duration(seconds)} to train {self.steps - step:,} more steps"


def duration(seconds: float) -> str:
    """A time in words: 8 s, 2 min 10 s, 3 h 05 min."""
    whole = math.ceil(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
