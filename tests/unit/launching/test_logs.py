"""Logs without loss or repetition, and what is read from them."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import PODS, a_job, a_pod, ended

from ddpipe.jobs.status import Replica, replica_of
from ddpipe.kube.api import Unanswered
from ddpipe.launching.logs import Logs, Position, fresh, metrics_of

JOB = a_job()
LOG = f"{PODS}/{JOB.name}-worker-0/log"


def line(second: str, text: str) -> bytes:
    return f"2026-01-01T00:00:{second}Z {text}".encode()


def test_lines_seen_before_the_cut_are_skipped_after_it() -> None:
    position = Position()
    assert list(fresh([line("01", "a"), line("02.5", "b")], position)) == ["a", "b"]
    assert position.since == {"sinceTime": "2026-01-01T00:00:02Z"}
    assert list(fresh([line("02.5", "b"), line("02.6", "c")], position)) == ["c"]


def test_lines_of_one_instant_are_counted() -> None:
    position = Position()
    list(fresh([line("01.5", "a"), line("01.5", "b")], position))
    assert list(fresh([line("01.5", "a"), line("01.5", "b"), line("01.5", "c")], position)) == ["c"]


def test_only_lines_of_one_instant_are_counted() -> None:
    position = Position()
    list(fresh([line("01", "a"), line("02.5", "b")], position))
    assert list(fresh([line("02.5", "b"), line("02.5", "c")], position)) == ["c"]


def test_times_without_their_last_zeros_are_in_order() -> None:
    lines = [line("05", "a"), line("05.09", "b"), line("05.1", "c")]
    position = Position()
    assert list(fresh(lines, position)) == ["a", "b", "c"]
    assert list(fresh(lines, position)) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (
            "epoch=3 step=69 train_loss=0.27 lr=2e-05",
            {"epoch": 3, "step": 69, "train_loss": 0.27, "lr": 2e-05},
        ),
        ("Epoch 3/10: loss 0.5, 812 images", {"epoch": 3, "loss": 0.5}),
        ("epoch=3/15 val_loss=.250 0.3 s", {"epoch": 3, "val_loss": 0.25}),
        ("loss of a connection to 10.0.0.1", {}),
        ("listening at port: 8080", {}),
    ],
)
def test_progress_lines_are_recognised(text: str, numbers: dict[str, float]) -> None:
    assert metrics_of(text) == numbers


def a_server(*streams: list[Any], previous: list[Any] | None = None) -> FakeApiServer:
    server = FakeApiServer()
    server.logs[LOG] = list(streams)
    if previous is not None:
        server.logs[f"{LOG}?previous"] = [previous]
    return server


def seen(pod: dict[str, Any]) -> Replica:
    return replica_of(pod, "worker-0", "pytorch")


def read(server: FakeApiServer, *pods: dict[str, Any]) -> list[str]:
    """What is passed on while the pod goes through these states."""
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    for pod in pods:
        logs.see([seen(pod)])
    assert logs.finish() == ()
    return written


def test_a_log_cut_in_the_middle_is_read_on() -> None:
    server = a_server([line("01", "a"), Unanswered("cut")], [line("01", "a"), line("02", "b")])
    assert read(server, a_pod(JOB, phase="Succeeded", state=ended(0))) == ["[worker-0] a", "[worker-0] b"]


def test_each_run_of_a_restarted_container_is_read() -> None:
    server = a_server([line("02", "second")], previous=[line("01", "first")])
    pod = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1})
    assert read(server, pod) == ["[worker-0] first", "[worker-0] second"]


def test_of_several_restarts_what_the_kubelet_still_has_is_read_once() -> None:
    server = a_server([line("03", "third")], previous=[line("02", "second")])
    pod = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 2})
    assert read(server, pod) == ["[worker-0] second", "[worker-0] third"]
    assert sum("previous" in request.query for request in server.asked) == 1


def test_a_container_that_restarts_faster_than_we_look_is_not_read_twice() -> None:
    """We know of one restart, and the kubelet shows the second one's previous run already."""
    server = a_server([line("03", "third")], previous=[line("02", "second")])
    once = a_pod(JOB, state={"waiting": {}}, container={"restartCount": 1})
    twice = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 2})
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(once)])
    server.awaited(lambda request: "previous" in request.query)
    logs.see([seen(twice)])
    assert logs.finish() == ()
    assert written == ["[worker-0] second", "[worker-0] third"]


def test_a_log_that_was_taken_for_the_run_before_costs_that_one_no_line() -> None:
    """We know of no restart yet, and the kubelet shows the run after it already."""
    server = a_server([line("03", "c"), line("04", "d")], previous=[line("01", "a"), line("02", "b")])
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB))])
    server.awaited(lambda request: "follow" in request.query)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1}))])
    assert logs.finish() == ()
    assert sorted(written) == [f"[worker-0] {text}" for text in "abcd"]


def test_a_run_that_was_followed_is_not_read_again_when_it_is_over() -> None:
    server = a_server(
        [line("01", "a"), line("02.5", "b"), Unanswered("cut")],
        [line("04", "d")],
        previous=[line("01", "a"), line("02.5", "b"), line("02.5", "c")],
    )
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB))])
    server.awaited(lambda request: "follow" in request.query)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1}))])
    assert logs.finish() == ()
    assert written == [f"[worker-0] {text}" for text in "abcd"]


def test_a_log_is_asked_of_the_container_that_trains() -> None:
    server = a_server([line("01", "a")])
    read(server, a_pod(JOB, phase="Succeeded", state=ended(0)))
    assert server.asked[0].query["container"] == "pytorch"


def test_a_long_log_is_read_to_its_end_however_long_that_takes() -> None:
    server = a_server([line(f"{number:02}", str(number)) for number in range(20)])
    written: list[str] = []

    def slow(text: str) -> None:
        time.sleep(0.02)
        written.append(text)

    logs = Logs(server, PODS, slow)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    assert logs.finish(silence=0.2) == ()
    assert len(written) == 20


def test_a_log_that_does_not_come_is_given_up_and_named() -> None:
    server = a_server([line("01", "a")])
    stuck = Event()
    logs = Logs(server, PODS, lambda _: stuck.wait(10))
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    assert logs.finish(silence=0.1) == ("worker-0",)
    stuck.set()


def test_the_log_of_a_pod_that_still_runs_is_not_waited_for() -> None:
    server = a_server([line("01", "a"), Unanswered("cut")])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB))])
    assert logs.finish(silence=10) == ()


def test_the_tail_and_the_metrics_are_kept() -> None:
    server = a_server([line(f"{n:02}", f"epoch {n} loss {n / 10}") for n in range(30)])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB, phase="Failed", state=ended(1)))])
    logs.finish()
    assert logs.tail("worker-0-uid")[-1] == "epoch 29 loss 2.9"
    assert logs.metrics == {"epoch": 29, "loss": 2.9}
