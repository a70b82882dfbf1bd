"""What is found wrong before anything is created: all of it at once, each with its fix."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import HIGH, JOBS, PODS, QUOTAS, a_job, a_server

from ddpipe.errors import ClusterUnreachable, NotInstalled, OperatorSilent, PreflightFailed
from ddpipe.jobs.backend import all_backends
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.pytorchjob import BACKEND, manifest
from ddpipe.kube import resources
from ddpipe.kube.api import Refused
from ddpipe.kube.resources import SNAPSHOTS
from ddpipe.kube.retrying import is_transient, refused
from ddpipe.launching import nodes, preflight
from ddpipe.launching.nodes import pods_that_fit
from ddpipe.launching.preflight import check

CONFIGS = resources.CONFIGS.path("team")
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
    "4 of nvidia.com/gpu requested, the largest node has 0",
    "quota small of namespace team leaves 1 of pods (2 of 3 in use), the job needs 2",
)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(PreflightFailed) as caught:
        checked(*broken())
    for words in WRONG:
        assert words in str(caught.value)
    assert 'resources: ["pods"]' not in str(caught.value)


def test_problems_are_remarks_with_preflight_warn() -> None:
    server, job = broken()
    remarks = "\n".join(checked(server, replace(job, preflight="warn")))
    for words in WRONG:
        assert words in remarks


def test_what_may_not_be_read_is_no_problem() -> None:
    job = a_job(volumes=["secret:key:/key"], service_account="me", patch=HIGH)
    server = a_server()
    server.fail(lambda request: request.method == "GET" and "kubeflow.org" not in request.path, FORBIDDEN)
    assert checked(server, job) == []


def test_a_cluster_without_this_kind_says_how_to_install_it() -> None:
    server = FakeApiServer()
    with pytest.raises(NotInstalled, match=r"has no PyTorchJobs.*Install the Kubeflow Training Operator"):
        checked(server, a_job())


def test_a_dry_run_s_error_is_a_problem() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(422, "Invalid", "spec: no such field"))
    with pytest.raises(PreflightFailed, match="the cluster rejects the job: spec: no such field"):
        checked(server, a_job())


def test_a_job_that_is_there_already_passes_the_dry_run() -> None:
    job = a_job()
    server = a_server()
    server.put(JOBS, manifest(job))
    assert checked(server, job) == []


def test_fields_that_an_old_server_would_drop_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "pytorchjobs.kubeflow.org of this cluster have no field" in str(caught.value)
    assert f"{where}, spec.nprocPerNode, and would drop it" in str(caught.value)
    assert "let this account read the CRD" in str(caught.value)


def test_an_object_that_the_cluster_cannot_store_is_named_with_its_largest_parts() -> None:
    """Its store says so with a 500, and no dry run gets that far."""
    job = a_job(env={f"V{number}": "x" * 100_000 for number in range(20)})
    with pytest.raises(PreflightFailed, match=r"has 1\.9 MiB, .* most of it in .*V9"):
        checked(a_server(), job)


def test_a_value_that_linux_does_not_pass_to_a_program_is_named() -> None:
    with pytest.raises(PreflightFailed, match=r"env\.BIG\.value has 128 KiB: Linux passes"):
        checked(a_server(), a_job(env={"BIG": "x" * 2**17}))
    checked(a_server(), a_job(env={"BIG": "x" * 2**16}))


def test_values_are_named_by_their_places() -> None:
    """In bytes, with the end that Linux adds; what is no part of a command or its variables may be longer."""
    most = 2**17 - 1
    container = {
        "name": "main",
        "command": ["sh", "é" * 2**16, "x" * (most - 1)],
        "env": [{"name": "BIG", "value": "x" * most}, {"name": "LESS", "value": "x" * (most - 1)}],
    }
    manifest = {"spec": {"containers": [container, {"image": "x" * 2 * most}], "nodes": 2}}
    assert list(preflight._too_large(manifest)) == [
        f"{place} has 128 KiB: Linux passes a program no more than 128 in one value"
        for place in ("spec.containers.main.command.1", "spec.containers.main.env.BIG.value")
    ]


def test_an_object_of_one_and_a_half_mebibytes_is_stored_and_no_larger_one() -> None:
    rest = {"b": [{"name": "c", "d": "x" * 2**18}, {"d": "x" * 2**17}], "e": "x" * 2**10, "f": "x"}
    most = 3 * 2**19 - len(json.dumps({"a": "", **rest}))
    assert list(preflight._too_large({"a": "x" * most, **rest})) == []
    (problem,) = preflight._too_large({"a": "x" * (most + 1), **rest})
    assert problem == (
        "the job's object has 1.5 MiB, more than the 1.5 that a cluster stores, most of it in a (1.12 MiB), "
        "b.c.d (0.25 MiB), b.1.d (0.12 MiB): put large values into the image or the object store"
    )


def test_a_dropped_field_is_one_that_had_a_value() -> None:
    """What a webhook has changed, or made longer, is not dropped."""
    sent = {
        "a": 1,
        "b": {},
        "c": [{"x": 1, "y": 2}, {"x": 3}],
        "d": {"e": 1},
        "f": [1],
        "g": [1],
        "h": [{"i": 1}],
    }
    kept = {"a": 2, "c": [{"x": 1}, {}], "d": 3, "g": 3, "h": [{}, {}]}
    assert list(preflight._dropped(sent, kept, "spec")) == ["spec.c.0.y", "spec.c.1.x", "spec.f"]


@pytest.mark.parametrize(
    "refusal",
    [
        Refused(500, "", "etcdserver: request is too large"),
        Refused(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"),
    ],
)
def test_an_object_that_is_too_large_is_no_outage(refusal: Refused) -> None:
    assert not is_transient(refusal)
    assert "Put large values into" in refused(refusal, "job a/b").do


def test_a_busy_server_is_asked_again_for_a_dry_run() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(429, "TooManyRequests", "busy"))
    with pytest.raises(ClusterUnreachable, match="HTTP 429 busy"):
        checked(server, a_job(outage=0.2))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"volumes": ["secret:key:/k"]}, "Secret key"),
        ({"volumes": ["config:c:/c"]}, "ConfigMap c"),
        ({"pull_secrets": ["registry"]}, "Secret registry"),
        ({"s3_secret": "s3"}, "Secret s3"),
        ({"service_account": "me"}, "ServiceAccount me"),
        ({"queue": "gpus"}, "LocalQueue gpus"),
        (
            {"pull_secrets": ["registry"], "volumes": ["secret:registry:/r"], "s3_secret": "none"},
            "Secret registry",
        ),
    ],
)
def test_objects_that_a_job_names_must_exist(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PreflightFailed, match=f"1 problem:\n.*{problem} does not exist in namespace team"):
        checked(a_server(), a_job(**options))


@pytest.mark.parametrize(
    ("snapshots", "problem"),
    [
        (None, r"this cluster has no volume snapshots \(volumesnapshots.snapshot.storage.k8s.io\)"),
        ([], "VolumeSnapshot friday in namespace team does not exist"),
        ([{}], "VolumeSnapshot friday in namespace team is not ready to use: it is still being taken"),
        ([{"error": {"message": "disk gone"}}], "is not ready to use: disk gone"),
        ([{"readyToUse": True, "restoreSize": "30Gi"}], "needs 30Gi, more than the 20Gi requested"),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_a_problem(
    snapshots: list[dict[str, Any]] | None, problem: str
) -> None:
    with pytest.raises(PreflightFailed, match=f"1 problem:\n.*{problem}"):
        checked(*with_snapshots(snapshots))


def test_a_snapshot_that_is_ready_is_fine() -> None:
    assert checked(*with_snapshots([{"readyToUse": True, "restoreSize": "20Gi"}])) == []


def test_a_snapshot_that_may_not_be_read_or_whose_size_is_not_known_is_fine() -> None:
    assert checked(*with_snapshots([{"readyToUse": True}])) == []
    server, job = with_snapshots([{"error": {"message": "disk gone"}}])
    server.fail(lambda request: request.path == f"{SNAPSHOTS.path('team')}/friday", FORBIDDEN)
    assert checked(server, job) == []


@pytest.mark.parametrize("state", [{}, {"status": {"error": {}}}])
def test_a_snapshot_without_a_state_is_still_being_taken(state: dict[str, Any]) -> None:
    server, job = with_snapshots([])
    server.put(SNAPSHOTS.path("team"), {"metadata": {"name": "friday"}, **state})
    with pytest.raises(PreflightFailed, match="is not ready to use: it is still being taken"):
        checked(server, job)


def with_snapshots(snapshots: list[dict[str, Any]] | None) -> tuple[FakeApiServer, TrainingJob]:
    """A server with snapshots of these states, or that knows of none, and a job that takes a copy of one."""
    server = a_server()
    if snapshots is not None:
        server.serve(SNAPSHOTS)
    for status in snapshots or ():
        server.put(SNAPSHOTS.path("team"), {"metadata": {"name": "friday"}, "status": status})
    return server, a_job(volumes=["snapshot:friday:/data:20Gi"])


def test_a_busy_server_does_not_mean_that_an_object_is_missing() -> None:
    server = a_server()
    server.fail(lambda request: "persistentvolumeclaims" in request.path, Refused(500, "", "etcd"))
    with pytest.raises(ClusterUnreachable, match="HTTP 500 etcd"):
        checked(server, a_job(volumes=["claim:data:/data"], outage=0.2))


def test_a_namespace_that_does_not_exist_is_a_problem() -> None:
    server = a_server()
    server.fail(lambda request: "dryRun" in request.query, Refused(404, "NotFound", "no"))
    with pytest.raises(PreflightFailed, match="namespace team does not exist: create it"):
        checked(server, a_job())


def test_a_missing_right_is_listed_once() -> None:
    """By the review of rights; the dry run is refused for the same reason."""
    server = a_server()
    server.allowed = lambda asked: asked["verb"] != "create"
    words = 'pytorchjobs is forbidden: User "me" cannot create resource "pytorchjobs"'
    server.fail(lambda request: "dryRun" in request.query, Refused(403, "Forbidden", words))
    with pytest.raises(PreflightFailed, match="1 problem") as caught:
        checked(server, a_job())
    assert "verbs: [create]" in str(caught.value)


def test_a_dry_run_is_strict_about_fields() -> None:
    server = a_server()
    checked(server, a_job())
    (query,) = (request.query for request in server.asked if request.path == JOBS and request.query)
    assert query == {"dryRun": "All", "fieldValidation": "Strict"}


def test_pods_that_have_ended_take_no_capacity() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    spec = {"containers": [{"resources": {"requests": {"cpu": "8"}}}], "nodeName": "n1"}
    ended = [
        {"metadata": {"name": phase}, "spec": spec, "status": {"phase": phase}}
        for phase in ("Succeeded", "Failed")
    ]
    server.know("/api/v1/pods", *ended)
    assert checked(server, a_job()) == []


def test_a_quota_of_jobs_has_room_for_one_more() -> None:
    server, name = a_server(), "count/pytorchjobs.kubeflow.org"
    quota = {"metadata": {"name": "jobs"}, "spec": {}}
    server.put(QUOTAS, {**quota, "status": {"hard": {name: "2"}, "used": {name: "1"}}})
    assert checked(server, a_job()) == []
    server.put(QUOTAS, {**quota, "status": {"hard": {name: "2"}, "used": {name: "2"}}})
    (problem,) = preflight.beyond_quota(server, a_job(), BACKEND)
    assert problem == (
        f"quota jobs of namespace team leaves 0 of {name} (2 of 2 in use), the job needs 1: "
        "request less, wait, or raise it"
    )


def test_a_priority_class_must_exist() -> None:
    with pytest.raises(PreflightFailed, match="priority class high does not exist"):
        checked(a_server(), a_job(patch=HIGH))


def test_nodes_are_not_looked_at_with_autoscaling() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    assert checked(server, a_job(gpus=1, preflight="autoscaling")) == []


def test_a_job_that_may_have_to_wait_is_a_remark() -> None:
    server = a_server()
    server.know("/api/v1/nodes", a_node())
    busy = {"containers": [{"resources": {"requests": {"cpu": "7500m"}}}], "nodeName": "n1"}
    server.know("/api/v1/pods", {"metadata": {"name": "busy"}, "spec": busy})
    (remark,) = checked(server, a_job())
    assert remark == "at the moment the nodes can take 0 of 2 pods: n1 has 0.5 of cpu free"


def test_less_memory_than_the_last_training_took_is_a_remark() -> None:
    job = a_job(peak_memory=3 * 2**30, processes=2, memory="6Gi")
    (remark,) = checked(a_server(), job)
    assert remark == (
        "the pods may run out of memory: a process of the last training of this network on this dataset had "
        "up to 3Gi, so 2 per pod need 6.6Gi with a tenth to spare, and their limit is 6Gi; request more "
        "memory, unless this training is smaller"
    )
    limits = {"containers": [{"name": "pytorch", "resources": {"limits": {"memory": "7Gi"}}}]}
    for enough in ({"memory": "7Gi"}, {"patch": {"spec": limits}}, {"peak_memory": 0}, {"processes": 1}):
        assert checked(a_server(), replace(job, **enough)) == []
    beside = {"containers": [{"name": "proxy", "resources": {"limits": {"memory": "7Gi"}}}]}
    assert checked(a_server(), replace(job, patch={"spec": beside})) == [remark]
    for kind in all_backends():
        assert list(preflight._scarce_memory(job, kind)) == [remark]


def test_a_webhook_that_is_silent_is_no_outage() -> None:
    """It is an HTTP 500, but retrying it as one would hide the cause for ten minutes."""
    server = a_server()
    words = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": timeout'
    server.fail(lambda request: "dryRun" in request.query, Refused(500, "InternalError", words))
    with pytest.raises(OperatorSilent):
        checked(server, a_job())


def test_a_flaky_server_repeats_single_requests() -> None:
    """At 30 % of 429s: not the whole of preflight again for each."""
    job, healthy, flaky = a_job(volumes=["config:c:/c"]), a_server(), a_server()
    for server in (healthy, flaky):
        server.put(CONFIGS, {"metadata": {"name": "c"}})
    requests = itertools.count(1)
    flaky.fail(lambda _: next(requests) % 10 in {1, 4, 7}, Refused(429, "TooManyRequests", "busy"))
    assert checked(healthy, job) == checked(flaky, job) == []
    assert len(flaky.asked) <= 1.6 * len(healthy.asked)


def a_service_pod(number: int, cpu: str, **spec: Any) -> dict[str, Any]:
    """A pod that each node has."""
    owner = {"kind": "DaemonSet", "controller": True, "uid": "ds"}
    container = {"resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": f"service-{number}", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": "n1", **spec}}


def a_full_server(count: int, cpu: str) -> FakeApiServer:
    """One node of 8 CPUs with so many service pods."""
    server = a_server()
    server.know("/api/v1/nodes", a_node(pods="5000"))
    server.know("/api/v1/pods")
    # Put directly: the fake collects what has an owner that it does not know.
    for number in range(count):
        server.put("/api/v1/pods", a_service_pod(number, cpu))
    return server


def test_pods_are_read_in_pages_and_summed() -> None:
    server = a_full_server(600, "13m")
    (remark,) = checked(server, a_job(preflight="warn"))
    assert "the nodes can take 0 of the job's 2 pods" in remark
    assert "n1 has 0.2 of cpu free" in remark
    pages = [request.query for request in server.asked if request.path == "/api/v1/pods"]
    assert [(page["limit"], page.get("continue")) for page in pages] == [
        ("250", None),
        ("250", "250"),
        ("250", "500"),
    ]


def test_a_large_cluster_s_pods_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST_PODS", 300)
    server = a_full_server(1200, "10m")
    assert checked(server, a_job()) == []
    assert pods_that_fit(server, a_job(), BACKEND) is None
    assert sum(request.path == "/api/v1/pods" for request in server.asked) == 4


def test_a_large_cluster_s_nodes_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST_NODES", 3)
    server = a_server()
    server.know("/api/v1/nodes", *(a_node(f"n{number}") for number in range(4)))
    assert checked(server, a_job(gpus=1)) == []


def test_a_list_that_expires_between_pages_is_no_problem() -> None:
    server = a_full_server(600, "20m")
    server.fail(lambda request: "continue" in request.query, Refused(410, "Expired", "too old"))
    assert checked(server, a_job()) == []


@pytest.mark.parametrize(
    ("message", "is_problem"),
    [
        ('pods "p" is forbidden: violates PodSecurity "restricted:latest"', True),
        ("spec.tolerations[0].operator: Unsupported value", True),
        ('pods is forbidden: User "me" cannot create resource "pods"', False),
        ("exceeded quota: small", False),
        ('admission webhook "w" does not support dry run', False),
    ],
)
def test_pods_are_tried_before_a_job_is_created(message: str, *, is_problem: bool) -> None:
    job, server = a_job(), a_server()
    server.fail(lambda request: request.method == "POST" and request.path == PODS, Refused(403, "", message))
    problems = list(preflight._dry_run_of_pod(server, job, BACKEND))
    assert problems == [f"the cluster rejects the job's pods: {message}"] * is_problem


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_exists_or_has_no_namespace_is_no_problem_of_its_fields(status: int) -> None:
    server = a_server()
    server.fail(lambda request: request.method == "POST" and request.path == PODS, Refused(status, "", "no"))
    assert list(preflight._dry_run_of_pod(server, a_job(), BACKEND)) == []


def test_the_pods_template_is_tried_as_a_pod_then_as_a_job_s() -> None:
    job, server, sent = a_job(), a_server(), list[tuple[Any, ...]]()

    def refused(path: str, body: Any, query: Any = None) -> dict[str, Any]:
        sent.append((path, body, query))
        raise Refused(403, "Forbidden", 'User "me" cannot create resource')

    server.create = refused  # type: ignore[method-assign]
    assert list(preflight._dry_run_of_pod(server, job, BACKEND)) == []
    pod, name = BACKEND.pod(job), {"name": f"{job.name}-0", "namespace": "team"}
    as_pod = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], **name}}
    template = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": name, "spec": {"template": template}}
    assert sent == [
        (PODS, as_pod, {"dryRun": "All"}),
        ("/apis/batch/v1/namespaces/team/jobs", as_job, {"dryRun": "All"}),
    ]


@pytest.mark.parametrize(("status", "is_problem"), [(422, True), (403, False)])
def test_an_account_that_may_not_create_pods_has_their_fields_tried_in_a_job(
    status: int, *, is_problem: bool
) -> None:
    job, server = a_job(), a_server()
    jobs = "/apis/batch/v1/namespaces/team/jobs"
    forbidden = Refused(403, "Forbidden", 'pods is forbidden: User "me" cannot create resource "pods"')
    wrong = Refused(status, "", "spec.template.spec.tolerations[0].operator: Unsupported value")
    server.fail(lambda request: request.method == "POST" and request.path == PODS, forbidden)
    server.fail(lambda request: request.method == "POST" and request.path == jobs, wrong)
    assert len(list(preflight._dry_run_of_pod(server, job, BACKEND))) == is_problem
