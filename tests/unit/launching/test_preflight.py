"""What is found wrong before anything is created: all of it at once, each with its fix."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import JOBS, QUOTAS, a_job, a_server

from ddpipe.errors import NotInstalled, PreflightFailed
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.pytorchjob import BACKEND, manifest
from ddpipe.kube.api import Refused
from ddpipe.kube.resources import SNAPSHOTS
from ddpipe.launching.preflight import check

FORBIDDEN = Refused(403, "Forbidden", "no")


def checked(server: FakeApiServer, job: TrainingJob) -> list[str]:
    return check(server, job, BACKEND, manifest(job))


def a_node(name: str = "n1", **allocatable: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", **allocatable}
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "status": {"allocatable": amounts}}


def broken() -> tuple[FakeApiServer, TrainingJob]:
    """A job with much that is wrong, and the server on which it is."""
    server = a_server()
    server.allowed = lambda asked: asked["resource"] == "pods" and not asked["subresource"]
    server.know("/api/v1/nodes", a_node())
    quota = {"metadata": {"name": "small"}, "spec": {}}
    server.put(QUOTAS, {**quota, "status": {"hard": {"pods": "3"}, "used": {"pods": "2"}}})
    return server, a_job(nodes=2, gpus=4, volumes=["claim:data:/data"], node_selector={"zone": "a"})


WRONG = (
    'add to its Role {apiGroups: ["kubeflow.org"], resources: ["pytorchjobs"], verbs: [create, get,',
    'resources: ["pods/log"]',
    "PersistentVolumeClaim data does not exist",
    "4 of nvidia.com/gpu asked, the largest node has 0",
    "quota small of namespace team leaves 1 of pods (2 of 3 in use), the job needs 2",
)


def test_all_that_would_keep_a_job_from_running_is_told_at_once() -> None:
    with pytest.raises(PreflightFailed) as caught:
        checked(*broken())
    for words in WRONG:
        assert words in str(caught.value)
    assert 'resources: ["pods"]' not in str(caught.value)


def test_who_wants_to_goes_on_in_spite_of_it_and_hears_the_same() -> None:
    server, job = broken()
    remarks = "\n".join(checked(server, replace(job, preflight="warn")))
    for words in WRONG:
        assert words in remarks


def test_what_may_not_be_read_is_not_held_against_a_job() -> None:
    job = a_job(volumes=["secret:key:/key"], service_account="me", priority_class="high")
    server = a_server()
    server.fail(lambda request: request.method == "GET" and "kubeflow.org" not in request.path, FORBIDDEN)
    assert checked(server, job) == []


def test_a_cluster_without_this_kind_of_job_is_told_how_to_get_it() -> None:
    server = FakeApiServer()
    with pytest.raises(NotInstalled, match=r"has no PyTorchJobs.*Install the Kubeflow Training Operator"):
        checked(server, a_job())


def test_what_the_server_says_to_a_dry_run_is_told() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(422, "Invalid", "spec: no such field"))
    with pytest.raises(PreflightFailed, match="the cluster refuses the job: spec: no such field"):
        checked(server, a_job())


def test_a_job_that_is_there_already_passes_the_dry_run() -> None:
    job = a_job()
    server = a_server()
    server.put(JOBS, manifest(job))
    assert checked(server, job) == []


def test_what_an_old_server_would_drop_in_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server, create = a_server(), FakeApiServer.create

    def forgetful(server: FakeApiServer, path: str, body: Any, query: Any = None) -> dict[str, Any]:
        made = create(server, path, copy.deepcopy(body), query)
        if path == JOBS:
            del made["spec"]["nprocPerNode"]
            container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
            del container["terminationMessagePolicy"]
            container["env"].append({"name": "ADDED", "value": "by a webhook"})
        return made

    monkeypatch.setattr(FakeApiServer, "create", forgetful)
    with pytest.raises(PreflightFailed) as caught:
        checked(server, a_job())
    where = "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.terminationMessagePolicy"
    assert "pytorchjobs.kubeflow.org of this cluster have no place for" in str(caught.value)
    assert f"{where}, spec.nprocPerNode, and would drop it" in str(caught.value)
    assert "let this account read its CRD" in str(caught.value)


def test_a_busy_server_is_no_answer_to_a_dry_run() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(429, "TooManyRequests", "busy"))
    with pytest.raises(Refused, match="429"):
        checked(server, a_job())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"volumes": ["secret:key:/k"]}, "Secret key"),
        ({"volumes": ["config:c:/c"]}, "ConfigMap c"),
        ({"pull_secrets": ["registry"]}, "Secret registry"),
        ({"s3_secret": "s3"}, "Secret s3"),
        ({"service_account": "me"}, "ServiceAccount me"),
        ({"queue": "gpus"}, "LocalQueue gpus"),
    ],
)
def test_whatever_a_job_names_has_to_exist(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PreflightFailed, match=f"1 problem:\n.*{problem} does not exist in namespace team"):
        checked(a_server(), a_job(**options))


@pytest.mark.parametrize(
    ("snapshots", "problem"),
    [
        (None, r"this cluster has no volume snapshots \(volumesnapshots.snapshot.storage.k8s.io\)"),
        ([], "VolumeSnapshot friday in namespace team does not exist"),
        ([{}], "VolumeSnapshot friday in namespace team is not ready to use: it is still being taken"),
        ([{"error": {"message": "disk gone"}}], "is not ready to use: disk gone"),
        ([{"readyToUse": True, "restoreSize": "30Gi"}], "needs 30Gi, more than the 20Gi asked for"),
    ],
)
def test_a_snapshot_that_no_volume_can_be_made_of_is_told(
    snapshots: list[dict[str, Any]] | None, problem: str
) -> None:
    with pytest.raises(PreflightFailed, match=f"1 problem:\n.*{problem}"):
        checked(*with_snapshots(snapshots))


def test_a_snapshot_that_is_ready_is_fine() -> None:
    assert checked(*with_snapshots([{"readyToUse": True, "restoreSize": "20Gi"}])) == []


def with_snapshots(snapshots: list[dict[str, Any]] | None) -> tuple[FakeApiServer, TrainingJob]:
    """A server with snapshots of these states, or that knows of none, and a job that takes a copy of one."""
    server = a_server()
    if snapshots is not None:
        server.serve(SNAPSHOTS)
    for status in snapshots or ():
        server.put(SNAPSHOTS.path("team"), {"metadata": {"name": "friday"}, "status": status})
    return server, a_job(volumes=["snapshot:friday:/data:20Gi"])


def test_a_server_that_is_busy_does_not_mean_that_something_is_missing() -> None:
    server = a_server()
    server.fail(lambda request: "persistentvolumeclaims" in request.path, Refused(500, "", "etcd"))
    with pytest.raises(Refused, match="500"):
        checked(server, a_job(volumes=["claim:data:/data"]))


def test_a_namespace_that_does_not_exist_is_told() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(404, "NotFound", "no"))
    with pytest.raises(PreflightFailed, match="namespace team does not exist: create it"):
        checked(server, a_job())


def test_a_right_that_is_missing_is_told_once() -> None:
    """By the review of rights; the dry run is refused for the same reason."""
    server = a_server()
    server.allowed = lambda asked: asked["verb"] != "create"
    words = 'pytorchjobs is forbidden: User "me" cannot create resource "pytorchjobs"'
    server.fail(lambda request: "dryRun" in request.query, Refused(403, "Forbidden", words))
    with pytest.raises(PreflightFailed, match="1 problem") as caught:
        checked(server, a_job())
    assert "verbs: [create]" in str(caught.value)


def test_a_dry_run_changes_nothing_and_refuses_what_is_not_known() -> None:
    server = a_server()
    checked(server, a_job())
    (query,) = (request.query for request in server.asked if request.path == JOBS and request.query)
    assert query == {"dryRun": "All", "fieldValidation": "Strict"}


def test_only_pods_that_have_not_ended_take_room() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    spec = {"containers": [{"resources": {"requests": {"cpu": "8"}}}], "nodeName": "n1"}
    ended = [
        {"metadata": {"name": phase}, "spec": spec, "status": {"phase": phase}}
        for phase in ("Succeeded", "Failed")
    ]
    server.know("/api/v1/pods", *ended)
    assert checked(server, a_job()) == []


def test_a_priority_class_that_does_not_exist_is_told() -> None:
    with pytest.raises(PreflightFailed, match="priority class high does not exist"):
        checked(a_server(), a_job(priority_class="high"))


def test_nodes_that_can_be_added_are_not_looked_at() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    assert checked(server, a_job(gpus=1, autoscaling=True)) == []


def test_that_a_job_may_have_to_wait_is_a_remark() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    busy = {"containers": [{"resources": {"requests": {"cpu": "7500m"}}}], "nodeName": "n1"}
    server.know("/api/v1/pods", {"metadata": {"name": "busy"}, "spec": busy})
    (remark,) = checked(server, a_job())
    assert remark == "at the moment the nodes have room for 0 of 2 pods: n1 has 0.5 of cpu free"
