"""The clocks of a job."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import JOBS, a_job, a_server, an_object

from ddpipe.errors import OperatorSilent
from ddpipe.jobs.options import Deadlines
from ddpipe.jobs.status import Stage
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.launching.deadlines import _MOST_LOOKS, Limits, Overdue, Queue
from ddpipe.launching.launcher import launch

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
    clock = clock.of_next_job()
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


JOB = a_job(deadlines={"reconciled": 0.2})
OURS = an_object(JOB)


def another(changed: str, number: int = 1, **status: Any) -> dict[str, Any]:
    """Another job, and when its operator has changed it."""
    found = an_object(a_job(owner=JOB.owner.__class__(pipeline="other", run_id=f"r{number}")), "Running")
    found["metadata"]["uid"] = f"other-{number}"
    found["status"]["conditions"][0]["lastTransitionTime"] = changed
    found["status"] |= status
    return found


def a_namespace(*others: dict[str, Any]) -> FakeApiServer:
    server = a_server(OURS)
    for other in others:
        server.put(JOBS, other)
    return server


def test_other_jobs_that_change_are_a_queue_that_moves() -> None:
    queue, server = Queue(), a_namespace(another("2026-01-01T00:01:58Z"))
    assert queue.moves(server, JOBS, OURS)
    assert not queue.moves(server, JOBS, OURS)  # nothing has changed since
    server.put(JOBS, another("2026-01-01T00:03:00Z", 2))
    assert queue.moves(server, JOBS, OURS)


@pytest.mark.parametrize("name", ["lastReconcileTime", "startTime", "completionTime"])
def test_any_time_of_a_status_shows_a_change(name: str) -> None:
    other = another("", **{name: "2026-01-01T00:00:30Z"})
    assert Queue().moves(a_namespace(other), JOBS, OURS)


def test_changes_before_the_job_was_created_do_not_count() -> None:
    assert not Queue().moves(a_namespace(another("2025-12-31T23:59:59Z")), JOBS, OURS)


def test_the_job_itself_shows_no_queue() -> None:
    changed = an_object(JOB, "Created")
    changed["status"]["lastReconcileTime"] = "2026-01-01T00:00:30Z"
    server = a_server(changed)
    assert not Queue().moves(server, JOBS, OURS)


def test_a_job_that_is_passed_over_is_not_waited_for_forever() -> None:
    queue, server = Queue(), a_namespace()
    looks = []
    for minute in range(_MOST_LOOKS + 1):
        server.put(JOBS, another(f"2026-01-01T00:{minute + 1:02}:00Z"))
        looks.append(queue.moves(server, JOBS, OURS))
    assert looks == [True] * _MOST_LOOKS + [False]


def test_a_busy_server_is_asked_again_and_a_refusal_shows_nothing() -> None:
    server = a_namespace(another("2026-01-01T00:01:58Z"))
    server.fail(lambda request: request.path == JOBS, Unanswered("cut"), times=1)
    assert Queue().moves(server, JOBS, OURS)
    server.fail(lambda request: request.path == JOBS, Refused(403, "Forbidden", "no"))
    assert not Queue().moves(server, JOBS, OURS)


def test_a_busy_operator_gets_as_much_time_again() -> None:
    out = io.StringIO()
    with pytest.raises(OperatorSilent, match="nothing happened to it"):
        launch(
            JOB, a_namespace(another("2026-01-01T00:01:58Z")), exists=lambda _: True, out=out, begin=adopted
        )
    assert out.getvalue().count("the Training Operator works on other jobs of this namespace") == 1


def adopted(_: object) -> tuple[dict[str, Any], bool]:
    """The job as it was created, to which nothing has happened."""
    return OURS, True
