"""On a stop request, the job is deleted first, unless it is the launcher alone that has to go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from fake_api import FakeApiServer, Request
from launch_samples import JOBS, PODS, a_job, a_server, an_object

from ddpipe.kube import resources
from ddpipe.kube.api import ApiError, Refused, Unanswered
from ddpipe.launching import stopping
from ddpipe.launching.stopping import Target, _looked_up, _stop, deletes_on_stop

JOB = a_job()
PATH = f"{JOBS}/{JOB.name}"
TARGET = Target(PATH, JOB.owner)
OWN_POD = f"{PODS}/step"
WORKFLOWS = resources.WORKFLOWS.path("team")
FROM_POD = Target(PATH, JOB.owner, OWN_POD)


def is_there(server: FakeApiServer) -> bool:
    try:
        server.get(PATH)
    except Refused:
        return False
    return True


def step(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "step", **metadata}}


def deletes(request: Request) -> bool:
    return request.method == "DELETE"


def test_the_job_is_deleted() -> None:
    server = a_server(an_object(JOB, "Running"))
    assert _stop(server, TARGET) == f"stop requested: {JOB.name} is deleted"
    assert not is_there(server)


def test_a_stranger_s_job_stays() -> None:
    found = an_object(JOB, "Running")
    found["metadata"]["annotations"] = {}
    server = a_server(found)
    assert "another owner and stays" in _stop(server, TARGET)
    assert is_there(server)


def test_a_job_whose_create_is_under_way_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_SETTLING", 5)
    server = a_server()
    Timer(0.1, server.put, (JOBS, an_object(JOB))).start()
    assert _stop(server, TARGET).endswith("is deleted")
    assert not is_there(server)


def test_a_create_request_that_is_answered_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server took the request, and nobody would delete its job."""
    monkeypatch.setattr(stopping, "_SETTLING", 0.05)
    server, target = a_server(), Target(PATH, JOB.owner)
    target.creating.set()
    Timer(0.5, lambda: server.put(JOBS, an_object(JOB, "Running"))).start()
    assert _stop(server, target) == f"stop requested: {JOB.name} is deleted"
    assert not is_there(server)


def test_a_job_that_appears_after_the_server_was_asked_for_it_is_deleted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its create request is over, too, before the answer "not found" is read."""
    monkeypatch.setattr(stopping, "_SETTLING", -1)
    server, target = a_server(), Target(PATH, JOB.owner)
    target.creating.set()
    asked = server.get

    def answer_late(path: str) -> dict[str, Any]:
        try:
            return asked(path)
        finally:
            if target.creating.is_set():
                server.put(JOBS, an_object(JOB))
                target.creating.clear()

    monkeypatch.setattr(server, "get", answer_late)
    assert _stop(server, target) == f"stop requested: {JOB.name} is deleted"


def test_without_a_job_the_end_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_SETTLING", 0.05)
    assert _stop(a_server(), TARGET) == "stop requested; there is no job to delete"


@pytest.mark.parametrize(
    "error",
    [
        Unanswered("cut"),
        Refused(429, "TooManyRequests", "busy"),
        Refused(500, "", "etcd"),
        Refused(409, "Conflict", "another uid"),
    ],
)
def test_what_is_over_in_a_moment_is_tried_again(error: ApiError) -> None:
    server = a_server(an_object(JOB, "Running"))
    server.fail(deletes, error, times=3)
    assert _stop(server, TARGET).endswith("is deleted")
    assert not is_there(server)


def test_a_missing_right_is_reported() -> None:
    server = a_server(an_object(JOB, "Running"))
    server.fail(deletes, Refused(403, "Forbidden", "no"))
    assert "the job cannot be deleted: HTTP 403 no" in _stop(server, TARGET)


def test_a_server_that_stays_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_GIVE_UP", 0.1)
    server = a_server(an_object(JOB, "Running"))
    server.fail(lambda _: True, Unanswered("refused"))
    assert "the API server does not answer" in _stop(server, TARGET)


class Seconds:
    """A clock on which only pauses take time, each at least as long as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, least: float = 0) -> None:
        self.now, self.pauses, self._least = 0.0, list[float](), least
        monkeypatch.setattr(stopping, "monotonic", lambda: self.now)
        monkeypatch.setattr(stopping, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += max(seconds, self._least)


def test_a_server_that_is_away_is_asked_for_as_long_as_a_pod_may_take_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default 30 s, of which the process needs some itself."""
    clock, server = Seconds(monkeypatch, least=1), a_server()
    server.fail(lambda _: True, Unanswered("refused"))
    assert "does not answer" in _stop(server, TARGET)
    assert clock.pauses == [0.02] * 25


def test_a_job_that_is_not_there_may_still_come_for_four_tenths_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Seconds(monkeypatch, least=0.25)
    assert "there is no job" in _stop(a_server(), TARGET)
    assert clock.now == 0.5


def test_an_eviction_is_looked_for_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down at the time of the signal."""
    server = a_server(an_object(JOB, "Running"))
    server.put(PODS, step())
    clock = Seconds(monkeypatch)
    assert _stop(server, FROM_POD).endswith("is deleted")
    assert clock.pauses == [0.0375] * 5
    assert server.methods(OWN_POD) == ["GET"] * 6


@pytest.mark.parametrize("gone", [False, True])
def test_the_job_stays_when_the_launcher_s_pod_is_deleted(gone: bool) -> None:
    server = a_server(an_object(JOB, "Running"))
    if not gone:
        server.put(PODS, step(deletionTimestamp="2026-01-01T00:01:00Z"))
    assert "the next attempt adopts it" in _stop(server, FROM_POD)
    assert is_there(server)


@pytest.mark.parametrize(
    ("workflow", "is_deleted"),
    [
        ({"spec": {"shutdown": "Terminate"}, "status": {"phase": "Running"}}, True),
        ({"spec": {"activeDeadlineSeconds": 0}, "status": {"phase": "Running"}}, True),
        ({"spec": {}, "status": {"phase": "Failed"}}, True),
        ({"spec": {"activeDeadlineSeconds": 3600}, "status": {"phase": "Running"}}, False),
    ],
)
def test_a_terminated_run_deletes_the_job_although_the_pod_is_deleted(
    workflow: dict[str, Any], is_deleted: bool
) -> None:
    """Argo deletes a pod whose start it has not seen yet, as a drain would."""
    server = a_server(an_object(JOB, "Running"))
    run = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "run-1"}
    server.put(PODS, step(namespace="team", deletionTimestamp="2026-01-01T00:01:00Z", ownerReferences=[run]))
    server.know(WORKFLOWS)
    server.put(WORKFLOWS, {"metadata": {"name": "run", "uid": "run-1"}, **workflow})
    assert _stop(server, FROM_POD).endswith("is deleted" if is_deleted else "adopts it")
    assert is_there(server) is not is_deleted


EVICTED = {
    "condition": {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
    },
    "reason": {"phase": "Failed", "reason": "Evicted", "message": "the node was low on resource: memory"},
}


@pytest.mark.parametrize("status", EVICTED.values(), ids=EVICTED)
def test_a_kubelet_that_evicts_the_launcher_leaves_the_job(status: dict[str, Any]) -> None:
    """Node pressure and a node's shutdown set no deletion time."""
    server = a_server(an_object(JOB, "Running"))
    server.put(PODS, {**step(), "status": status})
    assert "the next attempt adopts it" in _stop(server, FROM_POD)
    assert is_there(server)


def test_an_eviction_may_be_written_down_after_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_NOTICE", 5)
    server = a_server(an_object(JOB, "Running"))
    server.put(PODS, step())
    Timer(0.1, server.put, (PODS, {**step(), "status": EVICTED["condition"]})).start()
    assert "the next attempt adopts it" in _stop(server, FROM_POD)
    assert is_there(server)


def test_when_its_own_pod_stays_the_work_is_what_has_to_go() -> None:
    server = a_server(an_object(JOB, "Running"))
    server.put(PODS, step())
    assert _stop(server, FROM_POD).endswith("is deleted")


@pytest.mark.parametrize("error", [Unanswered("cut"), Refused(403, "Forbidden", "no")])
def test_a_pod_that_cannot_be_seen_is_no_reason_to_leave_the_job(error: ApiError) -> None:
    server = a_server(an_object(JOB, "Running"))
    server.fail(lambda request: request.path == OWN_POD, error)
    assert _stop(server, FROM_POD).endswith("is deleted")


@pytest.mark.parametrize(
    ("error", "launcher", "known"),
    [
        (Refused(404, "NotFound", "no"), None, True),
        (Refused(403, "Forbidden", "no"), None, True),
        (Refused(429, "TooManyRequests", "busy"), OWN_POD, False),
        (Unanswered("cut"), OWN_POD, False),
    ],
)
def test_a_busy_server_does_not_mean_that_the_pod_is_unknown(
    error: ApiError, launcher: str | None, known: bool
) -> None:
    """One 429 at the start made every later eviction look like a termination."""
    server = a_server()
    server.fail(lambda request: request.path == OWN_POD, error)
    target, is_known = _looked_up(server, FROM_POD)
    assert (target.launcher, is_known) == (launcher, known)


def test_a_busy_server_is_asked_again_for_the_launcher_s_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_LOOK_AGAIN", 0.01)
    server = a_server(an_object(JOB, "Running"))
    server.put(PODS, step())
    server.fail(lambda request: request.path == OWN_POD, Refused(503, "", "starting"), times=3)
    with deletes_on_stop(server, FROM_POD):
        server.awaited(lambda _: server.methods(OWN_POD).count("GET") == 4)
        server.awaited(lambda _: server.methods(PATH).count("GET") == 4)


def test_afterwards_signals_are_as_before_and_nothing_is_left_open() -> None:
    server = a_server(an_object(JOB, "Running"))

    def state() -> tuple[object, ...]:
        woken = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(woken)
        return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), woken

    before, others = state(), set(threading.enumerate())  # the guard of an earlier test may still be ending
    with deletes_on_stop(server, FROM_POD):
        assert state() != before
        (guard,) = (one for one in set(threading.enumerate()) - others if one.name == "stopping")
        server.awaited(lambda request: request.path == PATH)
        files = set(Path("/proc/self/fd").iterdir())
    guard.join(60)
    assert not guard.is_alive()
    assert state() == before
    assert len(files - set(Path("/proc/self/fd").iterdir())) >= 2, "both ends of its pipe"
    assert is_there(server)


def test_the_guard_keeps_its_connection_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_WARM", 0.01)
    server = a_server(an_object(JOB, "Running"))
    with deletes_on_stop(server, TARGET):
        server.awaited(lambda _: server.methods(PATH).count("GET") > 2)


PROGRAM = """
import os, sys, time
from threading import Event
from fake_api import FakeApiServer
from test_stopping import JOBS, PATH, FROM_POD, JOB, a_server, an_object
from ddpipe.launching.stopping import deletes_on_stop

server = a_server(an_object(JOB, "Running"))
delete = server.delete
def recorded(path, uid):
    delete(path, uid)
    os.write(1, b"deleted " + path.encode())
server.delete = recorded
with deletes_on_stop(server, FROM_POD):
    os.write(1, b"ready ")
    sys.stderr.close()
    time.sleep(30)
"""


# It ends while the server is deleting.
HASTY = (
    PROGRAM.replace("    delete(path, uid)", "    deleting.set(); time.sleep(1); delete(path, uid)")
    .replace("    sys.stderr.close()\n    time.sleep(30)", "    deleting.wait()")
    .replace("delete = server.delete", "delete, deleting = server.delete, Event()")
)


def test_a_process_that_is_done_waits_for_the_deletion() -> None:
    """The job is gone, so following ends; the server has yet to confirm."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    with subprocess.Popen(
        [sys.executable, "-c", HASTY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"ready "
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == f"deleted {PATH}".encode()
        assert process.wait() == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_deletes_the_job_although_nobody_listens(number: int, code: int) -> None:
    """With a launcher's pod that never was: outside of a cluster, POD_NAME may be anything."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"ready "
        process.send_signal(number)
        assert process.stdout.read() == f"deleted {PATH}".encode()
        assert process.wait() == code
