"""An operator that is busy with other jobs is not silent."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import JOBS, a_job, a_server, an_object

from ddpipe.errors import OperatorSilent
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.launching.deadlines import _MOST_LOOKS, Queue
from ddpipe.launching.launcher import launch

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
