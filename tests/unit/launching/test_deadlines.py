"""The clocks of a job."""

from __future__ import annotations

import pytest

from ddpipe.jobs.options import Deadlines
from ddpipe.jobs.status import Stage
from ddpipe.launching.deadlines import Limits, Overdue

DEADLINES = Deadlines(reconciled=10, scheduled=5, hopeless=3)


def limits() -> Limits:
    return Limits(DEADLINES)


def test_a_stage_that_lasts_too_long_names_its_deadline() -> None:
    clock = limits()
    assert clock.exceeded(Stage.RECONCILED, 100, running=True) is None
    assert clock.exceeded(Stage.RECONCILED, 110, running=True) is None
    assert clock.exceeded(Stage.RECONCILED, 110.1, running=True) == Overdue(Stage.RECONCILED, 10)


def test_each_stage_has_a_clock_of_its_own() -> None:
    clock = limits()
    clock.exceeded(Stage.RECONCILED, 100, running=True)
    clock.exceeded(Stage.SCHEDULED, 109, running=True)
    assert clock.exceeded(Stage.SCHEDULED, 113, running=True) is None
    assert clock.exceeded(Stage.SCHEDULED, 115, running=True) == Overdue(Stage.SCHEDULED, 5)


def test_the_clock_stands_still_while_the_job_is_suspended() -> None:
    """Also where nothing is heard of the job from its suspension to its resumption."""
    clock = limits()
    clock.exceeded(Stage.RECONCILED, 100, running=True)
    clock.exceeded(Stage.RECONCILED, 105, running=False)
    assert clock.exceeded(Stage.RECONCILED, 900, running=True) is None
    assert clock.exceeded(Stage.RECONCILED, 905, running=True) is None
    assert clock.exceeded(Stage.RECONCILED, 906, running=True) == Overdue(Stage.RECONCILED, 10)


def test_a_stage_that_begins_suspended_has_all_its_time_left() -> None:
    clock = limits()
    clock.exceeded(Stage.FINISHED, 100, running=True)
    clock.exceeded(Stage.SCHEDULED, 105, running=False)
    assert clock.exceeded(Stage.SCHEDULED, 900, running=True) is None
    assert clock.exceeded(Stage.SCHEDULED, 905, running=True) is None
    assert clock.exceeded(Stage.SCHEDULED, 905.1, running=True) == Overdue(Stage.SCHEDULED, 5)


def test_a_stage_without_a_deadline_may_last_for_ever() -> None:
    clock = limits()
    clock.exceeded(Stage.FINISHED, 0, running=True)
    assert clock.exceeded(Stage.FINISHED, 1e9, running=True) is None


def test_the_clock_of_finished_continues_while_a_pod_is_replaced() -> None:
    """An hour of spot nodes that come and go is an hour."""
    clock = Limits(Deadlines(finished=3600))
    clock.exceeded(Stage.SCHEDULED, 0, running=True)
    for now in range(600, 4200, 600):
        stage = Stage.SCHEDULED if now % 1200 else Stage.FINISHED
        assert clock.exceeded(stage, now, running=True) is None
    assert clock.exceeded(Stage.SCHEDULED, 4801, running=True) == Overdue(Stage.FINISHED, 3600)


def test_the_clock_of_finished_continues_in_the_next_job() -> None:
    """A job that is created again with another number of pods."""
    clock = Limits(Deadlines(finished=3600))
    clock.exceeded(Stage.FINISHED, 0, running=True)
    clock.exceeded(Stage.FINISHED, 3000, running=True)
    clock = Limits(clock.deadlines, clock.worked)
    assert clock.exceeded(Stage.SCHEDULED, 3100, running=True) is None
    assert clock.exceeded(Stage.FINISHED, 3200, running=True) is None
    assert clock.exceeded(Stage.FINISHED, 3700, running=True) is None
    assert clock.exceeded(Stage.FINISHED, 3801, running=True) == Overdue(Stage.FINISHED, 3600)


@pytest.mark.parametrize("stage", list(Stage))
def test_every_stage_has_its_own_deadline(stage: Stage) -> None:
    clock = Limits(Deadlines(**{name.name.lower(): 10 + name for name in Stage}))
    clock.exceeded(stage, 100, running=True)
    assert clock.exceeded(stage, 110 + stage, running=True) is None
    assert clock.exceeded(stage, 110.5 + stage, running=True) == Overdue(stage, 10 + stage)


def test_the_last_states_of_pods_are_waited_for_two_seconds() -> None:
    clock = limits()
    assert [clock.has_settled(now) for now in (100, 101, 102, 102.1)] == [False, False, False, True]
    assert not clock.has_settled(105, reconnecting=True), "the pods may be seen within some seconds"
    assert clock.has_settled(113, reconnecting=True)


def test_the_longest_pause_is_a_minute_and_the_shortest_not_zero() -> None:
    clock = Limits(Deadlines(reconciled=1000))
    assert clock.patience(100) == 60, "its clock does not run yet"
    clock.exceeded(Stage.FINISHED, 100, running=True)
    assert clock.patience(100) == 60
    assert clock.patience(100, [90]) == 0.02


def test_the_next_look_is_due_when_something_could_be_too_late() -> None:
    clock = limits()
    clock.exceeded(Stage.RECONCILED, 100, running=True)
    assert clock.patience(100) == 10
    assert clock.patience(100, [105]) == 5
    clock.has_settled(100)
    assert clock.patience(100) == 2
