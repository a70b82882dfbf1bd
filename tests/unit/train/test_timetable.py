"""How long a training takes, and how many steps fit into a budget of minutes, on a machine of known speed.

When a training saves and when it stops.
"""

from __future__ import annotations

import bisect
import logging
import os
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from ddpipe.distributed import STALL, World
from ddpipe.model import PASSES, VIEWS
from ddpipe.model.scoring import with_views
from ddpipe.train import timetable
from ddpipe.train.batches import images_seen
from ddpipe.train.constants import (
    LAUNCHES_LATER,
    POLL_SECONDS,
    SCORING_WORK,
    STEPS_BEFORE_FIRST_DECISION,
)
from ddpipe.train.recipe import Recipe
from ddpipe.train.timetable import (
    Budget,
    Patience,
    Timetable,
    TrainingRequest,
    TrainingWork,
    Watch,
    scored_later,
    watching,
)

ALONE = World(rank=0, size=1, device=torch.device("cpu"))

IMAGES, BATCH = 10_000, 100

PER_EPOCH = 100

WORK = TrainingWork(IMAGES, BATCH, validation=1000)


class Machine:
    """Trains on a clock of its own: a unit of work takes `pace` seconds."""

    def __init__(self, pace: Callable[[float], float] = lambda _now: 0.001) -> None:
        self.now, self.pace = 1000.0, pace

    def clock(self) -> float:
        return self.now

    def spend(self, seconds: float, slows: float = 1.0) -> None:
        """Do what takes so many seconds while a unit takes a millisecond, slowed by a power of that."""
        for _ in range(round(100 * seconds)):
            self.now += 0.01 * (1000 * self.pace(self.now)) ** slows

    def train(self, table: Timetable, work: TrainingWork, step: int = 0, until: int | None = None) -> int:
        """Take the steps of a timetable; the first one of a process takes longer."""
        self.now += 2.0
        while step < (table.steps if until is None else until):
            before = work.done(step, table.steps)
            self.now += (work.done(step + 1, table.steps) - before) * self.pace(self.now)
            step += 1
            table.tick(step, ALONE)
        return step


def a_budget(seconds: float, used: float = 0.0) -> Budget:
    return Budget(seconds, used, launch=1.0, scored=2000)


def run(
    seconds: float, machine: Machine, work: TrainingWork = WORK, used: float = 0.0
) -> tuple[Timetable, float]:
    """The timetable of a training with a budget, and the seconds that the run took in the end."""
    budget = a_budget(seconds, used)
    table = Timetable(work, 15, budget, machine.clock)
    began = machine.now
    machine.train(table, work)
    return table, used + machine.now - began + budget.later(machine.pace(machine.now))


@pytest.mark.parametrize("seconds", [60, 180, 600])
def test_a_run_ends_when_its_minutes_are_over(seconds: int) -> None:
    _, took = run(seconds, Machine())
    assert took == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("seconds", [60, 600])
def test_time_that_is_used_already_counts(seconds: int) -> None:
    table, took = run(seconds, Machine(), used=20)
    assert took == pytest.approx(seconds, rel=0.02)
    assert table.steps < run(seconds, Machine())[0].steps


def test_a_steady_machine_is_asked_ever_less_often_until_the_end_is_near() -> None:
    """A step takes 0.1 s. Of 0.985 * 60 s, the start needs 2 s, what comes later 4 s and 2000 / 3 images."""
    table, _ = run(60, Machine(), TrainingWork(IMAGES, BATCH, validation=0))
    asked = [0, 4, 8, 16, 32, 56, 79, 101, 122, 142]
    assert table.schedule[:10] == [[step, 524 if step else 20_000] for step in asked]
    assert table.schedule[-3:] == [[522, 524], [523, 524], [524, 524]]
    assert len(table.schedule) == 98
    assert [table.steps_at(step) for step in (0, 3, 4, 523)] == [20_000, 20_000, 524, 524]


def test_a_decision_counts_the_step_just_taken() -> None:
    """Step 56 takes 5 s instead of 0.1: of 59.1 s half remain for evaluation and export, 12.5 are over."""
    machine, work = Machine(), TrainingWork(IMAGES, BATCH, validation=0)
    table = Timetable(work, 15, a_budget(60), machine.clock)
    machine.train(table, work, until=55)
    machine.now, machine.pace = machine.now - 2.0, lambda _now: 0.05
    machine.train(table, work, 55, until=56)
    assert table.schedule[-2:] == [[32, 524], [56, 59]]


def test_nothing_is_decided_on_a_clock_that_stands_still() -> None:
    table = Timetable(WORK, 15, a_budget(60), lambda: 1000.0)
    for step in range(1, 21):
        table.tick(step, ALONE)
    assert table.schedule == [[step, 20_000] for step in (0, 4, 8, 16)]
    assert table.pace is None
    assert table.seconds_left(20) is None


@pytest.mark.parametrize(("work", "steps"), [(-1.0, 10), (0, 10), (499.9, 14), (500.0, 15), (1e9, 90)])
def test_as_many_steps_as_fit_are_planned(work: float, steps: int) -> None:
    """After ten, a hundred images each."""
    assert TrainingWork(IMAGES, BATCH, validation=0).fitting(10, work, most=90) == steps


@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_machine_that_changes_its_speed_is_followed(factor: float) -> None:
    machine = Machine(lambda now: 0.001 * (factor if now > 1100 else 1))
    assert run(300, machine)[1] == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize("factor", [1.5, 2])
@pytest.mark.parametrize("minute", ["no", "first", "second", "last", "each"])
@pytest.mark.parametrize("minutes", [2, 3, 10])
def test_a_busy_process_beside_it_takes_time_but_no_budget(minutes: int, minute: str, factor: float) -> None:
    """It slows down the launch, evaluation and export as well."""
    machine, launch, scored = Machine(), 2.0, 2000
    begin = 1000 + 60 * {"last": minutes - 1, "second": 1}.get(minute, 0)
    end = begin + 60 * {"no": 0, "each": 2 * minutes}.get(minute, 1)
    machine.pace = lambda now: 0.001 * (factor if begin <= now < end else 1)

    def later(now: float) -> float:
        machine.now = now
        machine.spend(LAUNCHES_LATER * launch, 0.5)
        machine.spend(SCORING_WORK * scored * 0.001)
        return machine.now

    machine.spend(launch, 0.5)
    ready = machine.now
    budget = Budget(60 * minutes, used=ready - 1000, launch=ready - 1000, scored=scored)
    table = Timetable(WORK, 15, budget, machine.clock)
    machine.train(table, WORK)
    assert 0.9 < (later(machine.now) - 1000) / (60 * minutes) <= 1

    machine.now, best, ends = ready, Timetable(WORK, 200, clock=machine.clock), list[float]()
    for step in range(best.steps):
        machine.now -= 2.0 if step else 0.0
        machine.train(best, WORK, step, until=step + 1)
        ends.append(machine.now)
    fitting = bisect.bisect_right(ends, 1000 + 60 * minutes, key=later)
    assert table.steps >= 0.93 * fitting


def test_a_noisy_machine_ends_in_time_as_well() -> None:
    machine = Machine(lambda now: 0.001 * (1 + 0.5 * (int(now * 7) % 3)))
    assert run(120, machine)[1] == pytest.approx(120, rel=0.05)


def test_growing_images_are_planned_for() -> None:
    """The first half of the steps costs a quarter each: the first decision knows what comes."""
    work = TrainingWork(IMAGES, BATCH, validation=1000, initial=0.5)
    table, took = run(120, Machine(), work)
    assert took == pytest.approx(120, rel=0.02)
    assert table.schedule[1][1] == pytest.approx(table.steps, rel=0.1)


@pytest.mark.parametrize(("views", "images"), [("plain", 10 + 20 + 10), ("flips", 2 * (10 + 20 + 10))])
def test_what_is_scored_later_counts_views(views: str, images: int) -> None:
    assert scored_later(test=10, validation=20, views=views) == images


@pytest.mark.parametrize("views", VIEWS)
def test_views_are_as_many_passes_of_the_network_as_planned(views: str) -> None:
    passes = 0

    class Network(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            nonlocal passes
            passes += 1
            return images.flatten(1)[:, :2]

    with_views(Network(), views)(torch.zeros(1, 8, 8, 1))
    assert passes == PASSES[views]


def test_more_minutes_are_more_steps() -> None:
    steps = [run(seconds, Machine())[0].steps for seconds in (60, 180, 600)]
    assert all(few < many for few, many in pairwise(steps))


def test_a_small_set_does_not_use_up_a_long_budget() -> None:
    work = TrainingWork(40, 64, validation=5)
    table, took = run(3600, Machine(), work)
    assert table.steps == 2000
    assert took < 360


@pytest.mark.parametrize(("seconds", "minutes"), [(60, "1"), (6, "0.1")])
def test_minutes_that_are_too_short_are_named(
    seconds: int, minutes: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        table, _ = run(seconds, Machine(), used=100)
    assert table.steps == STEPS_BEFORE_FIRST_DECISION
    (line,) = caplog.messages
    assert line.startswith(f"{minutes} minutes are too short")


def test_minutes_that_are_less_than_one_pass_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        short, _ = run(12, Machine())
        assert STEPS_BEFORE_FIRST_DECISION < short.steps < PER_EPOCH
        assert "0.2 minutes are too short" in caplog.text
        caplog.clear()
        assert run(30, Machine())[0].steps > PER_EPOCH
    assert not caplog.messages


@pytest.mark.parametrize(("seconds", "steps", "is_short"), [(17, 100, False), (16.9, 99, True)])
def test_minutes_suffice_for_exactly_one_pass(
    seconds: float, steps: int, is_short: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        table, _ = run(seconds, Machine(), TrainingWork(IMAGES, BATCH, validation=0))
    assert table.schedule[1] == [4, steps]
    assert ("too short" in caplog.text) is is_short


def test_a_resumed_training_keeps_the_decisions() -> None:
    """What both processes take together is the budget, and the second one starts from the first's steps."""
    machine, budget = Machine(), a_budget(120)
    table = Timetable(WORK, 15, budget, machine.clock)
    stopped = machine.train(table, WORK, until=300)
    used = machine.now - 1000.0
    machine.now += 7200  # a night
    began = machine.now
    resumed = Timetable(WORK, 15, a_budget(120, used), machine.clock)
    resumed.resume(stopped, table.schedule)
    assert (resumed.steps, resumed.schedule) == (table.steps, table.schedule)
    machine.train(resumed, WORK, stopped)
    took = used + machine.now - began + budget.later(0.001)
    assert took == pytest.approx(120, rel=0.03)
    assert resumed.steps_at(stopped - 1) == table.steps_at(stopped - 1)


def test_a_process_decides_once_it_knows_its_pace() -> None:
    """After one step there is nothing to decide by; the next decision is a twentieth of all steps away."""
    machine, budget = Machine(), a_budget(20)
    resumed = Timetable(WORK, 15, budget, machine.clock)
    resumed.resume(STEPS_BEFORE_FIRST_DECISION - 1, [])
    began = machine.now
    machine.train(resumed, WORK, STEPS_BEFORE_FIRST_DECISION - 1)
    assert resumed.schedule[1][0] == STEPS_BEFORE_FIRST_DECISION + 1
    assert machine.now - began + budget.later(0.001) == pytest.approx(20, rel=0.05)


def test_the_decisions_of_a_long_training_are_few() -> None:
    table, _ = run(100, Machine(lambda _: 0.0001), TrainingWork(10**6, 16, validation=1000))
    assert len(table.schedule) < 300


def test_without_minutes_the_epochs_decide() -> None:
    table = Timetable(WORK, 15, clock=Machine().clock)
    assert table.steps == 15 * PER_EPOCH
    assert table.schedule == [[0, 1500]]


def test_the_expected_time_is_logged_after_the_first_steps(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.INFO):
        machine.train(Timetable(WORK, 15, clock=machine.clock), WORK)
    (line,) = caplog.messages
    # After a twentieth: 142,300 images of a millisecond, and 15 validations of a third of 1,000
    assert line == "about 2 min 28 s to train 1,423 more steps"


LOADS: dict[str, tuple[Callable[[float], float], float]] = {
    "steady": (lambda _: 1, 0),
    "a slow start": (lambda now: 4 if now < 10 else 1, 10),
    "a short slow start": (lambda now: 4 if now < 4 else 1, 4),
    "load comes early": (lambda now: 1 if now < 5 else 3, 5),
    "load comes late": (lambda now: 1 if now < 40 else 3, 40),
    "load comes and ends": (lambda now: 3 if 40 <= now < 80 else 1, 80),
    "load comes and goes": (lambda now: 2 if now % 20 < 10 else 1, 0),
}
"""How many times as long a step takes at a second of a training, and when that changes for the last time."""


@pytest.mark.parametrize(("load", "changed"), LOADS.values(), ids=LOADS)
def test_a_time_left_is_shown_only_while_it_can_be_right(
    load: Callable[[float], float], changed: float
) -> None:
    """Within 1.5 of the truth, but for the seconds in which a change cannot be noticed yet."""
    random, began = np.random.default_rng(1), 1002.0
    machine = Machine(lambda now: 0.001 * load(now - began) * random.lognormal(0, 0.2))
    table, shown, step = Timetable(WORK, 15, clock=machine.clock), [], 0
    while step < table.steps:
        machine.now -= 2.0 if step else 0.0  # which only the first step of a process takes longer
        step = machine.train(table, WORK, step, until=step + 1)
        shown.append((machine.now, table.seconds_left(step)))
    known = [(left, machine.now - now) for now, left in shown if left and now > began + changed * 1.2]
    assert all(1 / 1.5 < left / truth < 1.5 for left, truth in known if truth > 5)
    assert len(known) > len(shown) / 5
    changing = [left for now, left in shown if changed * 1.2 < now - began < changed * 1.4]
    assert not any(changing), "the pace before the change counts still"


@pytest.mark.parametrize("start", [0, 100])
@pytest.mark.parametrize(
    ("steps", "pace", "first"), [(300, 0.001, 32), (3000, 0.001, 146), (30_000, 0.001, 637), (100, 0.01, 16)]
)
def test_a_time_left_is_shown_once_a_part_of_it_was_measured(
    start: int, steps: int, pace: float, first: int
) -> None:
    """A twentieth, but 3 to 60 s, and sixteen steps, at one of the last 64 times that were noted."""
    machine, work = Machine(lambda _now: pace), TrainingWork(IMAGES, BATCH, validation=0)
    table = Timetable(work, (start + steps) // PER_EPOCH, clock=machine.clock)
    table.resume(start, [])
    left = None
    for step in range(start, start + first):
        assert left is None
        machine.now -= 2.0 if step > start else 0.0
        machine.train(table, work, step, until=step + 1)
        left = table.seconds_left(step + 1)
    assert left == pytest.approx((steps - first) * BATCH * pace)
    assert table.pace == pytest.approx(pace)


def test_the_share_of_work_is_the_share_of_time() -> None:
    """So a progress bar in units of work shows the time that is left, also while images grow."""
    work = TrainingWork(IMAGES, BATCH, validation=1000, initial=0.5)
    machine = Machine()
    table = Timetable(work, 4, clock=machine.clock)
    machine.train(table, work, until=100)
    used = machine.now - 1002.0
    done, total = table.done(100)
    machine.train(table, work, 100)
    assert used * total / done == pytest.approx(machine.now - 1004.0, rel=0.01)


def test_the_work_is_that_of_the_recipe() -> None:
    recipe = Recipe(batch_size=BATCH, initial_resolution=0.5)
    work = TrainingWork.planned(recipe, IMAGES, 1000)
    assert work.done(100, 400) == pytest.approx(IMAGES / 4 + 1000 * SCORING_WORK)
    assert work.left(100, 400) == pytest.approx(2.25 * IMAGES + 3 * 1000 * SCORING_WORK)
    assert work.done(50, 50) == pytest.approx(
        images_seen(25, IMAGES, BATCH) / 4 + 2500 + 1000 * SCORING_WORK
    ), "the last epoch is validated although it is cut"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(timetable.time, "monotonic", lambda: now[0])
    return now


def test_a_checkpoint_is_asked_for_so_many_minutes_after_the_last_one(clock: list[float]) -> None:
    watch = Watch(2)
    asked = []
    for clock[0] in (1000.0, 1119.0, 1120.0, 1121.0):
        asked.append(watch.agreed(ALONE))
    assert asked == [
        TrainingRequest.CONTINUE,
        TrainingRequest.CONTINUE,
        TrainingRequest.SAVE,
        TrainingRequest.SAVE,
    ]
    watch.saved()
    assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
    clock[0] += 120
    assert watch.agreed(ALONE) is TrainingRequest.SAVE


def test_a_stop_wantedtakes_effect_at_any_time(clock: list[float]) -> None:
    watch = Watch(1)
    watch.request()
    clock[0] += 3600
    assert watch.agreed(ALONE) is TrainingRequest.STOP
    watch.saved()
    assert watch.agreed(ALONE) is TrainingRequest.STOP


class Polled(World):
    """One of two ranks, which notes when they asked each other; the other one says `OTHER`."""

    def max(self, value: int) -> int:
        POLLS.append(timetable.time.monotonic())
        return max(value, *OTHER)


POLLS: list[float] = []
OTHER: list[int] = []


def polled(clock: list[float], step: float, *others: int) -> tuple[Watch, World]:
    """A training of a hundred steps that take so long."""
    POLLS.clear()
    OTHER[:] = [0, *others]
    watch, world = Watch(60), Polled(0, 2, ALONE.device)
    for _ in range(100):
        assert watch.agreed(world) is TrainingRequest.CONTINUE
        clock[0] += step
    return watch, world


@pytest.mark.parametrize(("step", "polls"), [(1.0, 100), (0.1, 35), (0.025, 12)])
def test_ranks_poll_each_other_a_few_times_a_second(clock: list[float], step: float, polls: int) -> None:
    polled(clock, step)
    assert len(POLLS) == pytest.approx(polls, abs=2)
    assert max(after - before for before, after in pairwise(POLLS)) <= max(step, POLL_SECONDS) + step


def test_ranks_poll_each_other_ever_less_often_while_steps_are_short(clock: list[float]) -> None:
    polled(clock, 1 / 1024)
    steps = [round(1024 * (time - 1000)) for time in POLLS]
    assert steps == [0, 2, 6, 14, 30, 46, 62, 78, 94]


@pytest.mark.parametrize("wanted", [TrainingRequest.SAVE, TrainingRequest.RESTART, TrainingRequest.STOP])
@pytest.mark.parametrize("step", [1.0, 0.0001])
def test_ranks_hear_what_was_asked_for_at_any_pause(
    clock: list[float], step: float, wanted: TrainingRequest
) -> None:
    watch, world = polled(clock, step)
    watch.request(wanted)
    heard = [watch.agreed(world) for _ in range(16)]
    assert set(heard) <= {wanted, TrainingRequest.CONTINUE}
    assert wanted in heard
    POLLS.clear()


def test_the_slowest_rank_says_when_they_poll_again(clock: list[float]) -> None:
    polled(clock, 0.025, 15)  # a rank whose steps take long
    assert len(POLLS) == 100


def test_ranks_poll_in_time_for_a_checkpoint(clock: list[float]) -> None:
    watch, world = Watch(1 / 60), Polled(0, 2, ALONE.device)
    OTHER[:] = [0]
    for _ in range(3):
        began = clock[0]
        while watch.agreed(world) is TrainingRequest.CONTINUE:
            clock[0] += 0.03
        assert 1 <= clock[0] - began < 1 + 2 * 0.03
        watch.saved()
    POLLS.clear()


def test_a_wantedbetween_two_polls_counts_at_the_next(clock: list[float]) -> None:
    watch, world = polled(clock, 0.025)
    watch.request()
    asked = clock[0]
    while watch.agreed(world) is TrainingRequest.CONTINUE:
        clock[0] += 0.025
    assert clock[0] - asked < POLL_SECONDS + 0.025
    POLLS.clear()


class Waiting(World):
    """One of two ranks, which notes how long it would wait for the other."""

    def wait_at_most(self, seconds: float) -> None:
        WAITED.append(seconds)


WAITED: list[float] = []


def patience_after(
    clock: list[float], seconds: Sequence[float], *, may_shorten: bool = True
) -> tuple[Patience, list[float]]:
    WAITED.clear()
    patience = Patience(Waiting(0, 2, ALONE.device), may_shorten=may_shorten)
    patience.stepped()
    for one in seconds:
        clock[0] += one
        patience.stepped()
    return patience, WAITED


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ([0.1] * (16 - 1), []),
        ([0.1] * 16, [60]),
        ([0.1] * 16 + [7.0], [60, 140]),
        ([7.0] * 16 + [0.1] * 16, [140, 60]),
    ],
)
def test_ranks_wait_as_long_as_recent_steps_let_expect(
    clock: list[float], steps: list[float], waits: list[float]
) -> None:
    assert patience_after(clock, steps)[1] == pytest.approx(waits)


def test_ranks_wait_long_for_a_checkpoint(clock: list[float]) -> None:
    patience, waits = patience_after(clock, [0.1] * 16)
    patience.extend()
    clock[0] += 400
    patience.stepped()
    assert waits == [60, STALL, 60], "the time of the checkpoint is no step's"


def test_ranks_wait_long_where_each_step_reads_from_the_store(clock: list[float]) -> None:
    assert patience_after(clock, [0.1] * 50, may_shorten=False)[1] == []


def test_of_several_ranks_the_most_urgent_decides() -> None:
    requests = TrainingRequest.CONTINUE, TrainingRequest.SAVE, TrainingRequest.RESTART, TrainingRequest.STOP
    assert tuple(sorted(TrainingRequest)) == requests


def test_a_later_wanteddoes_not_replace_a_more_urgent_one() -> None:
    watch = Watch(1)
    watch.request(TrainingRequest.RESTART)
    assert watch.agreed(ALONE) is TrainingRequest.RESTART
    watch.request()
    watch.request(TrainingRequest.RESTART)
    assert watch.agreed(ALONE) is TrainingRequest.STOP


def test_a_rank_whose_parent_is_gone_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(1)
    assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert watch.agreed(ALONE) is TrainingRequest.STOP


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_inside_and_as_before_outside(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with watching(1) as watch:
        assert watch.agreed(ALONE) is TrainingRequest.CONTINUE
        os.kill(os.getpid(), number)
        assert watch.agreed(ALONE) is TrainingRequest.STOP
    assert signal.getsignal(number) is before


def test_slow_first_steps_do_not_end_a_training() -> None:
    """A busy machine: 20 s for the first four steps, then a hundredth of that for each, and a slow start."""
    machine = Machine(lambda now: 0.05 if now < 1022 else 0.0005)
    budget = Budget(120, used=20, launch=20, scored=2000)
    table = Timetable(WORK, 15, budget, machine.clock)
    machine.train(table, WORK)
    assert table.schedule[1][1] < PER_EPOCH
    took = 20 + machine.now - 1000 + budget.later(0.0005, slower=0.01)
    assert took == pytest.approx(120, rel=0.02), "the launch was slow, too: what follows will be faster"


def test_no_launch_is_expected_to_be_faster_than_its_processor_time() -> None:
    budget = Budget(120, used=20, launch=9, scored=0, least=6)
    faster, same, slower = (budget.later(0.001, ratio) / LAUNCHES_LATER for ratio in (0.25, 1, 4))
    assert (faster, same, slower) == (6, 9, 18)
    assert Budget(120, used=20, launch=0.5, scored=30).later(0.1) == pytest.approx(4 * 0.5 + 30 / 3 * 0.1)


def test_a_slow_machine_leaves_time_to_train() -> None:
    """Where evaluation and export alone would need all of the minutes, training gets half of the rest."""
    machine = Machine()
    table = Timetable(WORK, 15, Budget(120, used=20, launch=60, scored=2000), machine.clock)
    machine.train(table, WORK)
    assert machine.now - 1000 == pytest.approx(0.985 * 120 / 2 - 10, rel=0.05)


def test_first_steps_that_seem_far_too_fast_are_corrected_soon() -> None:
    """A device queues the first steps: they seem to take a hundredth of their time."""
    machine, budget = Machine(lambda now: 0.00001 if now < 1002.01 else 0.001), Budget(60, 5, 5, scored=2000)
    table = Timetable(WORK, 15, budget, machine.clock)
    machine.train(table, WORK)
    assert 5 + machine.now - 1000 + budget.later(0.001) == pytest.approx(60, rel=0.03)
