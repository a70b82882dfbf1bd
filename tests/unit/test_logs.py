"""Logs without loss or repetition, and what is read from them."""

from __future__ import annotations

import pytest
from launch_samples import FakeCluster, a_job, a_pod, ended

from ddpipe.launch.cluster import Unanswered
from ddpipe.launch.logs import Logs, Position, fresh, metrics_of
from ddpipe.launch.status import replica_of

JOB = a_job()
PODS = "/api/v1/namespaces/team/pods"
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
        ("loss of a connection to 10.0.0.1", {}),
        ("listening at port: 8080", {}),
    ],
)
def test_progress_lines_are_recognised(text: str, numbers: dict[str, float]) -> None:
    assert metrics_of(text) == numbers


def read(cluster: FakeCluster, *pods: dict[str, object]) -> list[str]:
    """What is passed on while the pod goes through these states."""
    written: list[str] = []
    logs = Logs(cluster, PODS, written.append)
    for pod in pods:
        logs.see([replica_of(JOB.name, pod)])
    logs.finish()
    return written


def test_a_log_cut_in_the_middle_is_read_on() -> None:
    first = [line("01", "a"), Unanswered("cut")]
    cluster = FakeCluster(streams={LOG: [first, [line("01", "a"), line("02", "b")]]})
    assert read(cluster, a_pod(JOB, phase="Succeeded", state=ended(0))) == ["[worker-0] a", "[worker-0] b"]


def test_each_run_of_a_restarted_container_is_read() -> None:
    cluster = FakeCluster(streams={LOG: [[line("01", "first")], [line("02", "second")]]})
    pod = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1})
    assert read(cluster, pod) == ["[worker-0] first", "[worker-0] second"]


def test_the_tail_and_the_metrics_are_kept() -> None:
    cluster = FakeCluster(streams={LOG: [[line(f"{n:02}", f"epoch {n} loss {n / 10}") for n in range(30)]]})
    logs = Logs(cluster, PODS, lambda _: None)
    logs.see([replica_of(JOB.name, a_pod(JOB, phase="Failed", state=ended(1)))])
    logs.finish()
    assert logs.tail("worker-0-uid")[-1] == "epoch 29 loss 2.9"
    assert logs.metrics == {"epoch": 29, "loss": 2.9}
