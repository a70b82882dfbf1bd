"""Which pod this process is, and whether the run that a job belongs to is over."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import PODS

from ddpipe.kube.api import Refused, Unanswered
from ddpipe.kube.resources import JOBS, WORKFLOWS
from ddpipe.kube.resources import PODS as POD_KIND
from ddpipe.launching import ownership
from ddpipe.launching.ownership import failed_steps, own_pod_path, owner_references, run_of, runs_over


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No pod's environment; returns where a pod has the name of its namespace."""
    for name in ("POD_NAME", "POD_NAMESPACE", "KFP_POD_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ownership, "_NAMESPACE", tmp_path / "namespace")
    return tmp_path / "namespace"


def test_outside_of_a_cluster_there_is_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_pod_path() is None
    monkeypatch.setenv("POD_NAME", "step")
    assert own_pod_path() is None
    assert owner_references(FakeApiServer(), "team") == []


def test_a_pod_knows_itself_by_host_name_and_account(outside: Path) -> None:
    outside.write_text("team\n")
    assert own_pod_path() == f"{PODS}/{socket.gethostname()}"


def test_the_environment_comes_before_the_host_name(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside.write_text("elsewhere")
    monkeypatch.setenv("KFP_POD_NAME", "by-kfp")
    assert own_pod_path() == POD_KIND.path("elsewhere", "by-kfp")
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    assert own_pod_path() == f"{PODS}/step"


def test_an_owner_elsewhere_or_out_of_sight_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster would collect such a job at once: it looks for the owner in its namespace."""
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    server = FakeApiServer()
    server.know(PODS, {"metadata": {"name": "step", "uid": "u"}})
    assert owner_references(server, "team") == [
        {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "u"}
    ]
    assert owner_references(server, "te") == owner_references(server, "other") == []
    server.fail(lambda _: True, Refused(403, "Forbidden", "no"))
    assert owner_references(server, "team") == []


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_a_controller_that_outlives_the_run_owns_no_job(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "n", "uid": "n", "controller": True}
    server = FakeApiServer()
    server.know(PODS, {"metadata": {"name": "step", "uid": "u", "ownerReferences": [owner]}})
    assert owner_references(server, "team") == []


@pytest.mark.parametrize("error", [Refused(429, "TooManyRequests", "busy"), Refused(503, "", "starting")])
def test_a_busy_server_does_not_mean_that_there_is_no_owner(
    error: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its owner a job outlives a launcher that vanishes."""
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    server = FakeApiServer()
    server.know(PODS, {"metadata": {"name": "step", "uid": "u"}})
    server.fail(lambda _: True, error, times=1)
    with pytest.raises(Refused):
        owner_references(server, "team")
    server.fail(lambda _: True, error, times=1)
    assert len(owner_references(server.patient(5), "team")) == 1


def a_run(kind: str, name: str = "run", uid: str = "") -> dict[str, Any]:
    """The reference to a run."""
    return {"kind": kind, "name": name, "uid": uid or f"{name}-uid"}


def run(name: str = "run", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"{name}-uid"}, "status": status}


def is_over(server: FakeApiServer, reference: dict[str, Any]) -> bool | None:
    (over,) = runs_over(server, "team", [reference]).values()
    return over


@pytest.mark.parametrize(
    ("kind", "status", "over"),
    [
        ("Pod", {"phase": "Succeeded"}, True),
        ("Pod", {"phase": "Pending"}, False),
        ("Workflow", {"phase": "Running"}, False),
        ("Workflow", {"phase": "Error"}, True),
        ("Workflow", {}, False),
        ("Job", {"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ("Job", {"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ("Job", {"conditions": [{"type": "Failed", "status": "False"}]}, False),
        ("Job", {"conditions": [{"type": "Suspended", "status": "True"}]}, False),
    ],
)
def test_a_run_of_any_kind_shows_whether_it_is_over(kind: str, status: dict[str, Any], over: bool) -> None:
    server = FakeApiServer()
    resource = {"Pod": POD_KIND, "Workflow": WORKFLOWS, "Job": JOBS}[kind]
    server.know(resource.path("team"), run(**status))
    assert is_over(server, a_run(kind)) is over
    assert is_over(server, a_run(kind, uid="another")) is True


@pytest.mark.parametrize(
    ("kind", "spec", "over"),
    [
        ("Workflow", {"shutdown": "Terminate"}, True),
        ("Workflow", {"activeDeadlineSeconds": 0}, True),
        ("Workflow", {"activeDeadlineSeconds": 1}, False),
        ("Job", {"activeDeadlineSeconds": 0}, False),
    ],
)
def test_a_workflow_that_is_to_end_is_over(kind: str, spec: dict[str, Any], over: bool) -> None:
    """It still runs, as the step does that removes its jobs."""
    server = FakeApiServer()
    resource = {"Workflow": WORKFLOWS, "Job": JOBS}[kind]
    server.know(resource.path("team"), {"metadata": run()["metadata"], "spec": spec})
    assert is_over(server, a_run(kind)) is over


def test_an_owner_of_another_kind_is_no_run() -> None:
    owned = {"metadata": {"ownerReferences": [{"kind": "StatefulSet", "name": "run", "uid": "u"}]}}
    assert run_of(owned) is None
    assert run_of({"metadata": {}}) is None
    assert run_of({"metadata": {"ownerReferences": [a_run("Pod")]}}) == a_run("Pod")


def test_a_server_that_is_away_ends_no_run() -> None:
    for error in (Unanswered("cut"), Refused(429, "", "busy")):
        server = FakeApiServer()
        server.fail(lambda _: True, error)
        with pytest.raises(type(error)):
            is_over(server, a_run("Pod"))


def a_server_with_workflows(count: int) -> tuple[FakeApiServer, list[dict[str, Any]]]:
    """A server with so many workflows, every second of which is over, and references to them."""
    server = FakeApiServer()
    server.know(WORKFLOWS.path("team"))
    for number in range(count):
        workflow = run(f"run-{number}", phase="Succeeded" if number % 2 else "Running")
        workflow["metadata"]["labels"] = {"workflows.argoproj.io/completed": "true"} if number % 2 else {}
        server.put(WORKFLOWS.path("team"), workflow)
    return server, [a_run("Workflow", f"run-{number}") for number in range(count)]


def test_many_workflows_are_looked_up_in_a_few_requests() -> None:
    server, runs = a_server_with_workflows(300)
    gone = a_run("Workflow", "gone")
    over = runs_over(server, "team", [*runs, *runs, gone])
    assert over == {**{f"run-{number}-uid": bool(number % 2) for number in range(300)}, "gone-uid": True}
    assert len(server.asked) == 1, "one page of those that run"


@pytest.mark.parametrize(("count", "requests"), [(3, 3), (4, 1)])
def test_a_few_workflows_are_read_one_by_one(count: int, requests: int) -> None:
    """A list of those that run may be long."""
    server, runs = a_server_with_workflows(count)
    assert None not in runs_over(server, "team", runs, most=3).values()
    assert len(server.asked) == requests


def test_a_run_of_many_jobs_is_read_once() -> None:
    server, runs = a_server_with_workflows(2)
    assert runs_over(server, "team", runs * 100) == {"run-0-uid": False, "run-1-uid": True}
    assert len(server.asked) == 2


def test_without_the_right_to_list_some_runs_are_read() -> None:
    server, runs = a_server_with_workflows(200)
    server.fail(lambda request: request.path == WORKFLOWS.path("team"), Refused(403, "Forbidden", "no"))
    over = runs_over(server, "team", runs, most=20)
    assert sum(known is not None for known in over.values()) == 20
    assert all(known is bool(int(uid.split("-")[1]) % 2) for uid, known in over.items() if known is not None)
    assert len(server.asked) == 21
    assert None not in runs_over(server, "team", runs).values()


def test_a_run_that_may_not_be_read_is_not_judged() -> None:
    server, runs = a_server_with_workflows(1)
    server.fail(lambda _: True, Refused(403, "Forbidden", "no"))
    assert is_over(server, runs[0]) is None


def a_step(name: str, node: str = "", second: int = 0, workflow: str = "w", **status: Any) -> dict[str, Any]:
    """A pod of a workflow, failed."""
    metadata = {
        "name": name,
        "creationTimestamp": f"2026-01-01T00:00:{second:02}Z",
        "labels": {"workflows.argoproj.io/workflow": workflow},
        "annotations": {"workflows.argoproj.io/node-name": node} if node else None,
    }
    return {"metadata": metadata, "status": {"phase": "Failed", **status}}


def test_a_step_has_failed_for_what_its_last_pod_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a container says most, then what Kubernetes says of the pod, then an exit code."""
    monkeypatch.setenv("POD_NAME", "own")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    ends = [
        {"state": {"running": {}}},
        {"state": {"terminated": {"exitCode": 0, "message": "fine"}}},
        {"state": {"terminated": {"exitCode": 3}}},
        {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no data"}}},
    ]
    server = FakeApiServer()
    server.know(
        PODS,
        a_step("own", "w.clean-up", phase="Running"),
        a_step("of-another", "v.train", workflow="v"),
        a_step("said", "w.a", message="lost", containerStatuses=ends),
        a_step("seen", "w.b", message="lost", reason="NodeLost", containerStatuses=ends[:3]),
        a_step("unnamed", reason="Evicted", containerStatuses=None),
        a_step("code", "w.c", containerStatuses=ends[:3]),
        a_step("silent", "w.d.executor"),
        a_step("late", "w.e(1)", 2, reason="second"),
        a_step("early", "w.e(0)", 1, reason="first"),
        a_step("same", "w.f(0)", reason="first"),
        a_step("same-again", "w.f(1)", reason="second"),
        a_step("earlier", "w.g(0)", 1, reason="first"),
        a_step("later", "w.g(1)", 2, phase="Succeeded"),
    )
    assert failed_steps(server) == [
        "a: no data",
        "b: lost",
        "unnamed: Evicted",
        "c: exit code 3 ()",
        "d: failed",
        "e: second",
        "f: second",
    ]


def test_outside_of_a_workflow_no_step_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeApiServer()
    server.know(PODS, {"metadata": {"name": "own"}}, a_step("another"))
    assert failed_steps(server) is None
    monkeypatch.setenv("POD_NAME", "own")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    assert failed_steps(server) is None
