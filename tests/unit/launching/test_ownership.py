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
from ddpipe.launching.ownership import own_pod_path, owner_references, run_is_over


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


def test_inside_a_pod_its_host_name_and_account_say_which(outside: Path) -> None:
    outside.write_text("team\n")
    assert own_pod_path() == f"{PODS}/{socket.gethostname()}"


def test_what_the_pod_is_told_of_itself_comes_before_what_it_guesses(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.write_text("elsewhere")
    monkeypatch.setenv("KFP_POD_NAME", "by-kfp")
    assert own_pod_path() == POD_KIND.path("elsewhere", "by-kfp")
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    assert own_pod_path() == f"{PODS}/step"


def test_an_owner_in_another_namespace_or_out_of_sight_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster would collect such a job at once: it looks for the owner beside it."""
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


def owned_by(kind: str, uid: str = "run-uid") -> dict[str, Any]:
    owner = {"kind": kind, "name": "run", "uid": uid}
    return {"metadata": {"name": "job", "namespace": "team", "ownerReferences": [owner]}}


def run(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "run", "uid": "run-uid"}, "status": status}


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
def test_a_run_of_any_kind_tells_whether_it_is_over(kind: str, status: dict[str, Any], over: bool) -> None:
    server = FakeApiServer()
    resource = {"Pod": POD_KIND, "Workflow": WORKFLOWS, "Job": JOBS}[kind]
    server.know(resource.path("team"), run(**status))
    assert run_is_over(server, owned_by(kind)) is over
    assert run_is_over(server, owned_by(kind, uid="another")) is True


def test_a_run_of_a_kind_that_nobody_knows_is_not_judged() -> None:
    assert run_is_over(FakeApiServer(), owned_by("StatefulSet")) is None
    assert run_is_over(FakeApiServer(), {"metadata": {}}) is None


def test_a_server_that_is_away_does_not_make_a_run_be_over() -> None:
    server = FakeApiServer()
    server.fail(lambda _: True, Unanswered("cut"))
    with pytest.raises(Unanswered):
        run_is_over(server, owned_by("Pod"))
