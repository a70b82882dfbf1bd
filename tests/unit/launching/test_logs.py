"""Logs without loss or repetition, of the chosen ranks and of those that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, current_thread, main_thread
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import PODS, a_job, a_pod, ended

from ddpipe.jobs.pytorchjob import BACKEND
from ddpipe.jobs.replicas import replica_of
from ddpipe.jobs.status import Replica
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.launching import logs as module
from ddpipe.launching.loglines import Mark, instant
from ddpipe.launching.logs import MOST_FOLLOWED, Logs

JOB = a_job()
LOG = f"{PODS}/{JOB.name}-worker-0/log"


def line(second: str, text: str) -> bytes:
    return f"2026-01-01T00:00:{second}Z {text}".encode()


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


def test_a_log_that_is_cut_continues_where_it_was() -> None:
    server = a_server([line("01", "a"), Unanswered("cut")], [line("01", "a"), line("02", "b")])
    assert read(server, a_pod(JOB, phase="Succeeded", state=ended(0))) == ["[worker-0] a", "[worker-0] b"]


@pytest.mark.parametrize("first_seen", ["running", "ended", "succeeded"])
def test_each_run_of_a_restarted_container_is_read(first_seen: str) -> None:
    server = a_server([line("02", "second")], previous=[line("01", "first")])
    last = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1})
    states = {
        "running": a_pod(JOB, container={"restartCount": 1, "lastState": ended(1)}),
        "ended": a_pod(JOB, state=ended(0), container={"restartCount": 1, "lastState": ended(1)}),
        "succeeded": last,
    }
    assert read(server, states[first_seen], last) == ["[worker-0] first", "[worker-0] second"]


def after_its_restart(server: FakeApiServer) -> list[str]:
    """What is written if the container has ended as far as we know, and a second run has begun."""
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB, state=ended(1, at="2026-01-01T00:00:02Z")))])
    server.awaited(lambda request: request.path == LOG)
    server.logs[f"{LOG}?previous"] = [[line("01", "a"), line("02", "b")]]
    logs.see([seen(a_pod(JOB, container={"restartCount": 1, "lastState": ended(1)}))])
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1}))])
    assert logs.finish() == ()
    return written


@pytest.mark.parametrize("shown", [[line("04", "c"), line("05", "d")], []], ids=["lines", "nothing"])
def test_a_run_that_has_ended_is_not_taken_for_the_next(shown: list[bytes]) -> None:
    """We know that it has ended, and the node shows the next run already, which may have written nothing."""
    server = a_server(shown, [line("04", "c"), line("05", "d")])
    assert after_its_restart(server) == [f"[worker-0] {text}" for text in "abcd"]


def test_runs_of_one_second_are_all_read() -> None:
    """The times cannot show whose lines these are: a run's end is known to the second."""
    server = a_server([line("02.8", "c"), line("04", "d")])
    server.logs[LOG].insert(0, [line("02.8", "c")])
    assert sorted(after_its_restart(server)) == [f"[worker-0] {text}" for text in "abcd"]


def test_the_log_of_a_run_that_has_ended_is_read_once() -> None:
    """Its lines began before its end, so they are its own; the last one's time is a moment after it."""
    server = a_server([line("01", "a"), line("11.1", "b")])
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB, state=ended(1)))])
    assert logs.finish() == ()
    logs.see([seen(a_pod(JOB, phase="Failed", state=ended(1)))])
    assert logs.finish() == ()
    assert written == ["[worker-0] a", "[worker-0] b"]
    assert len(server.asked) == 1


def test_finish_waits_for_no_restart_that_may_not_come() -> None:
    server = a_server([line("10.9", "a")])
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB, state=ended(1)))])
    assert logs.finish(silence=10) == ()
    assert written == ["[worker-0] a"]
    logs.see([])
    assert logs.finish() == ()
    assert written == ["[worker-0] a"]


def test_logs_that_the_kubelet_still_has_are_read_once() -> None:
    server = a_server([line("03", "third")], previous=[line("02", "second")])
    pod = a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 2})
    assert read(server, pod) == ["[worker-0] second", "[worker-0] third"]
    assert sum("previous" in request.query for request in server.asked) == 1


def test_two_restarts_between_two_looks_repeat_nothing() -> None:
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


def test_a_log_taken_for_the_run_before_costs_no_line() -> None:
    """We know of no restart yet, and the kubelet shows the run after it already."""
    server = a_server([line("03", "c"), line("04", "d")], previous=[line("01", "a"), line("02", "b")])
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see([seen(a_pod(JOB))])
    server.awaited(lambda request: "follow" in request.query)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1}))])
    assert logs.finish() == ()
    assert sorted(written) == [f"[worker-0] {text}" for text in "abcd"]


def restarted_while_followed(shows: Callable[[Event], list[Any]]) -> list[str]:
    """What is written if a node shows the second run before we know of it, and deletes the first one's log.

    Args:
        shows: The log of the second run as long as that runs; the event happens when we know of it.
    """
    known, first_is_read = Event(), Event()
    server = a_server(shows(known), previous=[line("01", "a"), line("02", "b")])
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text.removeprefix("[worker-0] "))
        if written[-1] == "b":
            first_is_read.set()

    logs = Logs(server, PODS, write)
    logs.see([seen(a_pod(JOB))])
    server.awaited(lambda request: "follow" in request.query)
    first = ended(1, at="2026-01-01T00:00:02Z")
    logs.see([seen(a_pod(JOB, container={"restartCount": 1, "lastState": first}))])
    known.set()
    assert first_is_read.wait(60), written
    server.logs = {LOG: [[line("04", "c"), line("05", "d")]]}
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1}))])
    assert logs.finish() == ()
    return written


def test_a_silent_log_that_may_be_the_next_runs_is_opened_again() -> None:
    def is_silent(seconds: float) -> None:
        if seconds < 100:
            raise Unanswered("timed out")

    assert restarted_while_followed(lambda _: [is_silent, line("04", "c")]) == ["a", "b", "c", "d"]


def test_the_next_runs_log_is_left_once_we_know_of_it() -> None:
    """Its first line is written by then, but the first run's are not lost."""

    def shows(known: Event) -> list[Any]:
        return [line("04", "c"), lambda _: known.wait(60), line("05", "d")]

    assert restarted_while_followed(shows) == ["c", "a", "b", "d"]


def test_a_run_that_was_followed_is_not_read_twice() -> None:
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


def test_a_container_that_waits_for_its_next_run_is_not_asked_for_it() -> None:
    """The node would answer that there is no such log, which is the end of one."""
    server, written = a_large_server(2), list[str]()
    server.logs[LOG], second = [[Refused(400, "BadRequest", "waiting to start")]], [[line("02", "b")]]
    server.logs[f"{LOG}?previous"] = [[line("01", "a")]]
    logs = Logs(server, PODS, written.append)
    waiting = seen(a_pod(JOB, state={"waiting": {}}, container={"restartCount": 1}))
    _, other = pods_of(2)
    logs.see([waiting])
    server.awaited(lambda request: "previous" in request.query)
    logs.see([waiting, other])
    server.awaited(lambda request: "worker-1" in request.path)
    server.logs[LOG] = second
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0), container={"restartCount": 1})), other])
    assert logs.finish() == ()
    assert {"[worker-0] a", "[worker-0] b"} <= set(written)


def test_the_container_that_trains_is_the_one_read() -> None:
    server = a_server([line("01", "a")])
    read(server, a_pod(JOB, phase="Succeeded", state=ended(0)))
    assert server.asked[0].query["container"] == "pytorch"


def test_a_long_log_is_read_to_its_end() -> None:
    server = a_server([line(f"{number:02}", str(number)) for number in range(20)])
    written: list[str] = []

    def slow(text: str) -> None:
        time.sleep(0.02)
        written.append(text)

    logs = Logs(server, PODS, slow)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    assert logs.finish(silence=0.2) == ()
    assert len(written) == 20


def test_a_log_that_is_stuck_is_given_up_and_named() -> None:
    server = a_server([line("01", "a")])
    stuck = Event()
    logs = Logs(server, PODS, lambda _: stuck.wait(60))
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    assert logs.finish(silence=0.1) == ("worker-0",)
    stuck.set()


def test_finish_waits_for_no_pod_that_still_runs() -> None:
    server = a_server([line("01", "a"), Unanswered("cut")])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB))])
    assert logs.finish(silence=10) == ()


def test_the_tail_and_the_metrics_are_kept() -> None:
    server = a_server([line(f"{n:02}", f"epoch {n} loss {n / 10}") for n in range(30)])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB, phase="Failed", state=ended(1)))])
    logs.finish()
    assert logs.tail("worker-0-uid") == tuple(f"epoch {n} loss {n / 10}" for n in range(10, 30))
    assert logs.reports.metrics == {"epoch": 29, "loss": 2.9}


def line_of(second: int, text: str) -> bytes:
    return line(f"{second:02}", text)


def pods_of(count: int, *failed: int, role: str = "worker") -> list[Replica]:
    """Replicas that run, or failed."""
    states = {number: {"phase": "Failed", "state": ended(1)} for number in failed}
    pods = [a_pod(JOB, f"{role}-{number}", **states.get(number, {})) for number in range(count)]
    return [replica_of(pod, f"{role}-{number}", "pytorch") for number, pod in enumerate(pods)]


def a_large_server(count: int) -> FakeApiServer:
    """A server with a log for each rank."""
    server = FakeApiServer()
    for number in range(count):
        server.logs[f"{PODS}/{JOB.name}-worker-{number}/log"] = [
            [line_of(1, f"hello from {number}"), Unanswered("cut")]
        ]
    return server


def requested(server: FakeApiServer) -> dict[str, dict[str, str]]:
    """The query of each rank whose log was requested."""
    return {request.path.split("/")[-2].rpartition("-")[2]: dict(request.query) for request in server.asked}


def follow(server: FakeApiServer, replicas: list[Replica]) -> tuple[list[str], list[str]]:
    """What is printed and said until the job has ended."""
    written: list[str] = []
    said: list[str] = []
    logs = Logs(server, PODS, written.append, say=said.append)
    logs.see(replicas)
    logs.finish()
    return written, said


def test_logs_are_opened_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 pods that start at once are no reason to send hundreds of requests at once."""
    monkeypatch.setattr(module, "_OPENED_PER_SECOND", 0.1)
    server = a_large_server(30)
    logs = Logs(server, PODS, lambda _: None)
    logs.see(pods_of(30))
    server.awaited(lambda _: len(server.asked) == 10)
    assert len(server.asked) == 10


def test_connections_are_bounded_and_the_limit_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPENED_AT_ONCE", 10_000)  # a log that is cut is opened again
    count = MOST_FOLLOWED + 30
    server = a_large_server(count)
    said: list[str] = []
    logs = Logs(server, PODS, lambda _: None, say=said.append)
    logs.see(pods_of(count))
    logs.see(pods_of(count))
    for number in range(MOST_FOLLOWED):
        server.awaited(lambda request, number=number: request.path.endswith(f"worker-{number}/log"))
    assert len(requested(server)) == MOST_FOLLOWED
    assert said == ["following the logs of 64 pods, of the others only those that fail"]


def test_a_failed_rank_is_read_although_it_was_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 1)
    server = a_large_server(3)
    server.logs[f"{PODS}/{JOB.name}-worker-2/log"] = [[Unanswered("cut")], [line_of(1, "boom")]]
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see(pods_of(3))
    logs.see(pods_of(3, 2))
    assert logs.finish() == ()
    assert "[worker-2] boom" in written
    assert logs.tail("worker-2-uid") == ("boom",)
    assert logs.tail("worker-1-uid") == ()
    assert requested(server)["2"]["tailLines"] == "100"
    assert "1" not in requested(server)


def test_a_restarted_rank_shows_the_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 0)
    server = a_server([line("09", "second")], previous=[line("01", "boom")])
    pod = a_pod(JOB, state={"running": {}}, container={"restartCount": 1, "lastState": ended(1)})
    written, _ = follow(server, [seen(pod)])
    assert written == ["[worker-0] boom"]


def test_of_many_failed_ranks_the_first_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 1)
    server = a_large_server(50)
    for log in server.logs.values():
        log[0] = [line_of(1, "boom")]
    written, _ = follow(server, pods_of(50, *range(1, 50)))
    read = {text.partition("]")[0] for text in written} - {"[worker-0"}
    assert len(read) == 16


def test_names_of_metrics_are_bounded() -> None:
    server = a_server([line("01", f"epoch 1 loss{number}=1 loss") for number in range(500)])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    logs.finish()
    assert 10 < len(logs.reports.metrics) <= 100


def test_logs_of_replaced_pods_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 5)
    server = a_server([line("01", "a")])
    logs = Logs(server, PODS, lambda _: None)
    for number in range(20):
        pod = a_pod(JOB, phase="Failed", state=ended(1), metadata={"uid": f"uid-{number}"})
        logs.see([seen(pod)])
        logs.finish()
    kept = [number for number in range(20) if logs.tail(f"uid-{number}")]
    assert kept == [15, 16, 17, 18, 19]


def test_a_failed_rank_is_not_read_again_once_there_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 1)
    server = a_large_server(2)
    server.logs[f"{PODS}/{JOB.name}-worker-1/log"] = [[line_of(1, "boom")]]
    written: list[str] = []
    logs = Logs(server, PODS, written.append)
    logs.see(pods_of(2))
    logs.see(pods_of(2, 1))
    assert logs.finish() == ()
    logs.see(pods_of(2, 0, 1))
    server.logs[f"{PODS}/{JOB.name}-worker-0/log"] = [[]]
    logs.finish(silence=2)
    logs.see(pods_of(2, 0, 1))
    logs.finish(silence=2)
    assert written.count("[worker-1] boom") == 1


def test_the_log_of_an_init_container_that_failed_is_read() -> None:
    server = a_server([line("01", "nothing to fetch")])
    status = {"initContainerStatuses": [{"name": "fetch", "state": ended(4)}]}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    pod = a_pod(JOB, phase="Failed", status=status, state=waiting)
    assert read(server, pod) == ["[worker-0] nothing to fetch"]
    assert server.asked[-1].query["container"] == "fetch"


def a_run(pod: dict[str, Any]) -> tuple[module.PodLog, list[tuple[dict[str, str], float]], list[bytes]]:
    """The log of a pod, its requests that tests make, and what they are answered."""
    asked: list[tuple[dict[str, str], float]] = []
    answer: list[bytes] = []

    def opened(_: Replica, query: Any, idle: float) -> Iterator[bytes]:
        if current_thread() is not main_thread():
            raise Refused(400, "BadRequest", "not what these tests look at")
        asked.append((dict(query), idle))
        return iter([text + b"\n" for text in answer])

    return module.PodLog(seen(pod), opened, lambda *_: None), asked, answer


def test_a_log_without_a_line_is_requested_again_after_ever_longer() -> None:
    """It may be the next run's; once a line has come, it is not."""
    pod, asked, answer = a_run(a_pod(JOB))
    one = module._RunLog(pod, 0, [])
    assert [list(one.read()) for _ in range(9)] == [[]] * 9
    assert asked == [({"follow": "true"}, idle) for idle in (15, 30, 60, 120, 240, 480, 960, 1800, 1800)]
    answer += [line("01.5", "a")]
    one = module._RunLog(pod, 0, [])
    assert [found.text for _ in range(2) for found in one.read()] == ["a"]
    assert asked[9:] == [
        ({"follow": "true"}, 15),
        ({"follow": "true", "sinceTime": "2026-01-01T00:00:01Z"}, 1800),
    ]
    pod.see(None)


def test_what_is_known_of_each_run_of_a_container() -> None:
    """Of three runs the last runs, has ended, or has ended with its pod."""
    restarted = {"restartCount": 2, "lastState": ended(1, at="2026-01-01T00:00:02Z")}
    states = [
        a_pod(JOB, container=restarted),
        a_pod(JOB, state=ended(1, at="2026-01-01T00:00:07Z"), container=restarted),
        a_pod(JOB, phase="Failed", state=ended(1, at="2026-01-01T00:00:07Z"), container=restarted),
        a_pod(JOB, state={"waiting": {}}, container=restarted),
    ]
    known = []
    for state in states:
        pod, _, _ = a_run(state)
        known.append(
            [
                "".join("01"[knows(run)] for run in range(4))
                for knows in (pod.is_kept, pod.is_previous, pod.has_ended, pod.is_certain, pod._has_begun)
            ]
        )
        known[-1] += [str(end and end[0] % 60) for end in map(pod.end_of, range(4))]
        pod.see(None)
    assert known == [
        ["0111", "1100", "1100", "1100", "1110", "None", "2", "None", "None"],
        ["0111", "1100", "1111", "1100", "1110", "None", "2", "7", "None"],
        ["0111", "1100", "1111", "1111", "1110", "None", "2", "None", "None"],
        ["0111", "1100", "1100", "1100", "1100", "None", "2", "None", "None"],
    ]


@pytest.mark.parametrize(("second", "is_own"), [("03.9", True), ("04", False)])
def test_a_line_a_second_after_the_end_is_still_the_run_s(second: str, *, is_own: bool) -> None:
    """On a busy node the last lines get their times after the end."""
    pod, _, answer = a_run(a_pod(JOB, state=ended(1, at="2026-01-01T00:00:02Z")))
    answer += [line("01", "a"), line(second, "b")]
    lines = module._RunLog(pod, 0, []).read()
    assert next(lines).text == "a"
    if is_own:
        assert [found.text for found in lines] == ["b"]
    else:
        with pytest.raises(Unanswered, match="next run"):
            next(lines)
    pod.see(None)


def test_a_run_knows_how_far_the_last_four_were_read() -> None:
    pod, _, _ = a_run(a_pod(JOB))
    marks = [Mark(repeats=number) for number in range(5)]
    one = module._RunLog(pod, 0, marks)
    assert one.marks == [*marks[2:], one.mark]
    pod.see(None)


def test_each_log_is_asked_for_by_its_container_with_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is followed, then the last lines of a run that failed, and of the one before it."""
    monkeypatch.setattr(module, "MOST_FOLLOWED", 1)
    server, idles = a_large_server(3), dict[str, float]()
    for number in range(3):
        path = f"{PODS}/{JOB.name}-worker-{number}/log"
        server.logs[path] = [[partial(idles.__setitem__, str(number))]]
    server.logs[f"{PODS}/{JOB.name}-worker-2/log?previous"] = server.logs[path]
    done = replica_of(a_pod(JOB, phase="Succeeded", state=ended(0)), "worker-0", "pytorch")
    again = a_pod(JOB, "worker-2", container={"restartCount": 1, "lastState": ended(1)})
    follow(server, [done, pods_of(2, 1)[1], replica_of(again, "worker-2", "pytorch")])
    always = {"container": "pytorch", "timestamps": "true"}
    assert requested(server) == {
        "0": {**always, "follow": "true"},
        "1": {**always, "tailLines": "100"},
        "2": {**always, "tailLines": "100", "previous": "true"},
    }
    assert idles == {"0": 15, "1": 1800, "2": 1800}


def test_last_lines_are_given_up_after_ten_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 0)
    monkeypatch.setattr(module, "sleep", lambda _: None)
    server = a_server([Unanswered("cut")])
    assert follow(server, pods_of(1, 0))[0] == []
    assert len(server.asked) == 10


def test_a_rank_that_fails_again_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWED", 0)
    server, written = a_server([line("09", "second")], previous=[line("01", "first")]), list[str]()
    logs = Logs(server, PODS, written.append)
    restarted = {"restartCount": 1, "lastState": ended(1)}
    for pod in (a_pod(JOB, container=restarted), a_pod(JOB, container=restarted)):
        logs.see([seen(pod)])
        assert logs.finish() == ()
    server.logs[f"{LOG}?previous"] = server.logs[LOG]
    logs.see([seen(a_pod(JOB, container={**restarted, "restartCount": 2}))])
    assert logs.finish() == ()
    assert written == ["[worker-0] first", "[worker-0] second"]


def test_a_report_is_as_old_as_its_line() -> None:
    server = a_server([line("05", "step=1 of=4")])
    logs = Logs(server, PODS, lambda _: None)
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    logs.finish()
    second, _ = instant("2026-01-01T00:00:05Z") or (0, 0)
    assert logs.reports.now(second + 1).seen == second
    assert (logs.reports.now(second + 1).rank, logs.reports.now(second + 1).percent) == ("worker-0", 25)


def test_a_log_that_is_stuck_holds_no_process() -> None:
    stuck = Event()
    logs = Logs(a_server([line("01", "a")]), PODS, lambda _: stuck.wait(60))
    logs.see([seen(a_pod(JOB, phase="Succeeded", state=ended(0)))])
    reader = logs._followed["worker-0-uid"].thread
    assert (reader.is_alive(), reader.daemon) == (True, True)
    stuck.set()


def test_the_progress_of_a_job_is_that_of_its_first_pod_that_runs() -> None:
    server, idles = (
        a_server([line("00", "step=1 of=4"), line("02", "step=2 of=4"), line("02", "a")]),
        list[float](),
    )
    server.logs[LOG][0].append(idles.append)
    server.know(PODS, *(a_pod(JOB, f"worker-{number}") for number in (1, 0)))
    server.time = (instant("2026-01-01T00:00:02Z") or (0, 0))[0]
    found = module.progress_of(server, "team", BACKEND, JOB.name)
    assert found is not None
    assert (found.percent, found.seconds_left, found.rank) == (50, 4, f"{JOB.name}-worker-0")
    listed, log = server.asked
    assert (
        listed.query.items()
        >= {
            "labelSelector": BACKEND.selector(JOB.name),
            "fieldSelector": "status.phase=Running",
        }.items()
    )
    assert (log.path, log.query) == (
        LOG,
        {"container": "pytorch", "timestamps": "true", "tailLines": "100"},
    )
    assert idles == [5]


def test_a_job_none_of_whose_pods_runs_has_no_progress() -> None:
    server = a_server([line("00", "step=1 of=4")])
    server.know(PODS, a_pod(JOB, phase="Succeeded"))
    found = module.progress_of(server, "team", BACKEND, JOB.name)
    assert found is not None
    assert (found.percent, len(server.asked)) == (None, 1)
    server.fail(lambda _: True, Refused(403, "Forbidden", "no"))
    assert module.progress_of(server, "team", BACKEND, JOB.name) is None


def test_pods_are_silent_only_if_all_of_their_last_lines_are_known_and_old() -> None:
    server = a_large_server(3)
    paths = [f"{PODS}/{JOB.name}-worker-{number}/log" for number in range(3)]
    idles = list[float]()
    for path, last in zip(paths, ("00", "30", "31"), strict=True):
        server.logs[path] = [[line(last, "a"), idles.append]]
    server.time = (instant("2026-01-01T00:01:31Z") or (0, 0))[0]
    logs, pods = Logs(server, PODS, print), pods_of(3)
    assert [logs.is_silent(some, 60) for some in (pods[:2], pods, [])] == [True, False, False]
    assert idles == [5] * 5
    assert server.asked[0].query == {"container": "pytorch", "timestamps": "true", "tailLines": "1"}
    server.logs[paths[1]] = [[b"unable to retrieve container logs"]]
    assert not logs.is_silent(pods[:2], 60)
    server.logs[paths[1]] = [[Unanswered("cut")]]
    assert not logs.is_silent(pods[:2], 60)


@pytest.mark.parametrize(("seconds_later", "is_silent"), [(59, False), (60, False), (61, True)])
def test_a_pod_is_silent_whose_last_line_is_old(seconds_later: int, is_silent: bool) -> None:
    server = a_server([line("00", "a")])
    began, _ = instant("2026-01-01T00:00:00Z") or (0, 0)
    server.time = began + seconds_later
    assert Logs(server, PODS, print).is_silent([seen(a_pod(JOB))], 60) is is_silent
