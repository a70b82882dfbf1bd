"""`ddpipe runs` against a server whose API is the described one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_commands import ddpipe, facts, refusal
from kfp_server import Server

from ddpipe.commands import runs as commands
from ddpipe.engine import runs
from ddpipe.engine.client import Endpoint, connect
from ddpipe.engine.runs import RunState
from ddpipe.errors import EngineError, EngineUnreachable, RunFailed, RunStopped, UnknownToEngine

PREPARE, TRAIN, CLEAN_UP = (
    f"flow-{step}-system-container-impl-7" for step in ("prepare", "train", "clean-up")
)


@pytest.fixture
def run_id(server: Server) -> str:
    """A run that has been started."""
    started: str = facts("submit", "custom-job")["run_id"]
    return started


@pytest.fixture
def training(server: Server) -> str:
    """A run whose steps are prepare, train, …"""
    started: str = facts("submit")["run_id"]
    return started


def test_runs_are_listed_the_newest_first(server: Server, run_id: str) -> None:
    newest = facts("submit", "custom-job", "--run-name", "the newest")["run_id"]
    assert [run["run_id"] for run in facts("runs", "ls")["runs"]] == [newest, run_id]
    assert len(facts("runs", "ls", "--count", "1")["runs"]) == 1
    assert "the newest" in ddpipe("runs", "ls").stdout


def test_only_the_namespaces_runs_are_asked_for(server: Server) -> None:
    server.namespaces = ("team-a",)
    facts("runs", "ls", "--namespace", "team-a")
    assert "namespace=team-a" in server.requests[-1]


def test_run_is_shown_with_its_steps_and_no_groups(server: Server, training: str) -> None:
    result = ddpipe("runs", "show", training)
    assert "  train " in result.stdout
    assert "root" not in result.stdout
    assert f"/#/runs/details/{training}" in result.stdout


def test_run_can_be_waited_for(server: Server, training: str) -> None:
    assert facts("runs", "show", training, "--wait")["state"] == "SUCCEEDED"
    server.ends = ("FAILED",)
    refusal(RunFailed, "runs", "show", training, "--wait")


def test_log_is_that_of_the_failed_step_or_of_the_named_one(server: Server, training: str) -> None:
    server.logs.update({TRAIN: "diverged\n", PREPARE: "1797 images\n"})
    server.ends = ("FAILED",)
    assert ddpipe("runs", "logs", training).stdout == "diverged\n"
    assert ddpipe("runs", "logs", training, "prepare").stdout == "1797 images\n"
    assert "it has prepare, train" in refusal(UnknownToEngine, "runs", "logs", training, "fly")["seen"]


def test_a_run_that_trains_shows_how_far_it_is(
    server: Server, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.logs[TRAIN] = "[worker-0] step=1 of=10\n[launch] progress=0.42 seconds_left=580\n[worker-0] line\n"
    monkeypatch.setattr(runs, "look", lambda *_: RunState("", "", "RUNNING", None, "", (_trains(),)))
    monkeypatch.setattr(commands, "latest", lambda *_: [RunState(training, "mine", "RUNNING", None, "")])
    (found,) = facts("runs", "ls")["runs"]
    assert found["progress"].startswith("42 %, 9 min 40 s left")
    server.logs.clear()
    assert facts("runs", "ls")["runs"][0]["progress"] == ""


def _trains() -> runs.StepState:
    return runs.StepState("train", "RUNNING", None, 5.0, (TRAIN,))


def test_log_is_found_through_the_web_page_too(server: Server, training: str) -> None:
    server.logs[PREPARE] = "1797 images\n"
    server.behind_page = True
    assert ddpipe("runs", "logs", training, "prepare").stdout == "1797 images\n"


def test_log_of_a_pod_is_found_where_the_server_cannot_read_it(
    server: Server, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kubernetes:
        def lines(self, path: str, *_query: object) -> list[bytes]:
            assert path == f"/api/v1/namespaces/kubeflow/pods/{PREPARE}/log"
            return [b"1797 images", b"done"]

    monkeypatch.setattr(runs, "connect", Kubernetes)
    assert ddpipe("runs", "logs", training, "prepare").stdout == "1797 images\ndone\n"


def test_log_that_is_gone_is_reported(server: Server, training: str) -> None:
    error = refusal(UnknownToEngine, "runs", "logs", training, "train")
    assert "nor, from here, Kubernetes" in error["seen"]
    assert "kubectl get pods" in error["do"]


def test_run_is_stopped_once(server: Server, training: str) -> None:
    server.ends = ("RUNNING",)
    assert facts("runs", "stop", training)["stopped"]
    assert not facts("runs", "stop", training)["stopped"]
    assert server.asked(":terminate") == 1


def test_waiting_for_a_stopped_run_reports_where_it_was_stopped(server: Server, training: str) -> None:
    server.logs[CLEAN_UP] = "removed PyTorchJob kubeflow/train-1\n"
    server.ends = ("RUNNING",)
    facts("runs", "stop", training)
    error = refusal(RunStopped, "runs", "show", training, "--wait")
    assert "it was stopped at step train" in error["seen"]
    assert "removed PyTorchJob kubeflow/train-1" in error["seen"]


def test_failure_shows_the_steps_lines_without_the_engines(server: Server, training: str) -> None:
    server.logs[TRAIN] = (
        "I1122 17:46:55.386897      15 main.go:139] Setting log level to: '1'\n"
        "diverged\n"
        'time="2026-11-22T17:47:32.376Z" level=info msg="sub-process exited" argo=true error="<nil>"\n'
    )
    server.ends = ("FAILED",)
    error = refusal(RunFailed, "runs", "show", training, "--wait")
    assert error["seen"] == "step train failed; the end of its log:\n  diverged\n"


def test_failed_run_is_retried_and_waited_for(server: Server, training: str) -> None:
    server.ends = ("FAILED",)
    assert facts("runs", "retry", training, "--wait")["state"] == "SUCCEEDED"
    assert "Only failed runs" in refusal(EngineError, "runs", "retry", training)["seen"]


def test_unknown_run_is_reported_with_where_to_look(server: Server) -> None:
    for act in ("show", "logs", "stop", "retry"):
        error = refusal(UnknownToEngine, "runs", act, "no-such-run")
        assert "runs ls" in error["do"]


def test_version_that_was_deleted_is_reported(server: Server, training: str) -> None:
    server.versions.clear()
    assert "PipelineVersion" in refusal(UnknownToEngine, "runs", "show", training)["seen"]


def test_waiting_ends_when_the_server_is_away_for_too_long(server: Server, training: str) -> None:
    engine, times = connect(Endpoint(url=server.url)), iter(range(0, 10_000, 100))
    server.faults.extend([500] * 50)
    with pytest.raises(EngineUnreachable):
        runs.follow(engine, training, print, clock=lambda: float(next(times)))


def test_waiting_survives_outages_that_together_are_too_long(server: Server, training: str) -> None:
    """Each of them is counted from the last answer, not from the start."""
    engine, now = connect(Endpoint(url=server.url)), 0.0

    def clock() -> float:
        nonlocal now
        now += 150
        return now

    server.ends = ("RUNNING",) * 8 + ("SUCCEEDED",)
    for _ in range(6):
        server.faults.extend([500, 500, 0, 0])
    assert runs.follow(engine, training, print, clock=clock).state == "SUCCEEDED"
    assert now > 2 * runs._OUTAGE


def test_only_the_end_of_a_failed_steps_log_is_read(
    server: Server, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[dict[str, str]] = []

    class Kubernetes:
        def lines(self, _path: str, query: dict[str, str], _idle: float) -> Iterator[bytes]:
            queries.append(query)
            return (b"line %d" % number for number in range(100_000))

    monkeypatch.setattr(runs, "connect", Kubernetes)
    server.ends = ("FAILED",)
    error = refusal(RunFailed, "runs", "show", training, "--wait")
    assert "line 99999" in error["seen"]
    assert error["seen"].count("\n") < 50
    assert queries == [{"container": "main", "tailLines": "200"}]
