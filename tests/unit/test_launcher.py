"""Our own branches of the protocol; what Kubernetes does is tested on a real one (tests/cluster)."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest
from launch_samples import UID, FakeCluster, a_job, a_pod, an_object, ended

from ddpipe.errors import NameTaken, OutputMissing, PreflightFailed, ReplicaFailed
from ddpipe.launch.backends.pytorchjob import BACKEND, RESOURCE, manifest
from ddpipe.launch.cluster import Refused, Unanswered
from ddpipe.launch.job import Keep, TrainingJob
from ddpipe.launch.launcher import Outcome, launch
from ddpipe.launch.orphans import list_jobs, sweep
from ddpipe.launch.outage import patiently
from ddpipe.launch.preflight import check
from ddpipe.launch.watching import Message, Picture, Source, Trouble, start

JOBS, PODS = RESOURCE.path("team"), "/api/v1/namespaces/team/pods"
EVENTS = "/api/v1/namespaces/team/events"
REVIEWS = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def a_list(*items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def a_cluster(job: TrainingJob, found: dict[str, Any] | None, *pods: dict[str, Any]) -> FakeCluster:
    """A cluster on which this job is to be found, with its pods."""
    objects: dict[str, Any] = {
        "/apis/kubeflow.org/v1": {"resources": [{"name": "pytorchjobs"}]},
        "/api/v1/namespaces/team/resourcequotas": a_list(),
        REVIEWS: {"status": {"allowed": True}},
        JOBS: a_list(*([found] if found else [])),
        PODS: a_list(*pods),
        EVENTS: a_list(),
    }
    if found:
        objects[RESOURCE.path("team", job.name)] = found
    logs = {f"{PODS}/{pod['metadata']['name']}/log": [[], []] for pod in pods}
    return FakeCluster(objects, streams=logs)


def launched(job: TrainingJob, cluster: FakeCluster, *, exists: bool = True) -> Outcome:
    return launch(replace(job, outage=1), cluster, exists=lambda _: exists, out=io.StringIO())


def finished(job: TrainingJob, code: int = 0) -> FakeCluster:
    phase = "Failed" if code else "Succeeded"
    pods = [a_pod(job, f"worker-{rank}", phase, state=ended(code)) for rank in range(2)]
    return a_cluster(job, an_object(job, phase), *pods)


def test_a_job_that_succeeded_meanwhile_is_concluded_and_removed() -> None:
    job = a_job()
    cluster = finished(job)
    outcome = launched(job, cluster)
    assert (outcome.uid, outcome.taken_up, outcome.kept) == (UID, True, False)
    assert ("DELETE", RESOURCE.path("team", job.name)) in cluster.asked
    assert ("POST", JOBS) not in cluster.asked


def test_a_kept_job_is_not_removed() -> None:
    job = a_job(keep=Keep.ALWAYS)
    cluster = finished(job)
    assert launched(job, cluster).kept
    assert "DELETE" not in dict(cluster.asked)


def test_a_success_without_its_output_is_none() -> None:
    job = a_job(outputs=["s3://b/model"])
    with pytest.raises(OutputMissing, match="s3://b/model"):
        launched(job, finished(job), exists=False)


def test_a_failed_job_of_an_earlier_attempt_makes_room_for_a_new_one() -> None:
    job = a_job()
    cluster = finished(job, code=1)
    cluster.objects[PODS] = a_list()
    cluster.objects["POST " + JOBS] = Refused(403, "Forbidden", "exceeded quota")
    with pytest.raises(Exception, match="exceeded quota"):
        launched(job, cluster)
    deletion = cluster.asked.index(("DELETE", RESOURCE.path("team", job.name)))
    assert cluster.asked.index(("POST", JOBS)) > deletion


def test_a_stranger_s_job_is_left_alone() -> None:
    job = a_job()
    cluster = finished(job)
    del cluster.objects[RESOURCE.path("team", job.name)]["metadata"]["annotations"]
    with pytest.raises(NameTaken, match="did not create"):
        launched(job, cluster)
    assert "DELETE" not in dict(cluster.asked)


def test_a_job_that_was_asked_for_differently_is_left_alone() -> None:
    job = a_job()
    cluster = a_cluster(job, an_object(job, "Running"))
    with pytest.raises(NameTaken, match="asked for differently"):
        launched(a_job(image="another:1"), cluster)


def test_a_failed_job_s_cause_is_told_before_it_is_removed() -> None:
    job = a_job()
    cluster = finished(job, code=3)
    cluster.objects[RESOURCE.path("team", job.name)] = an_object(job, "Running")
    with pytest.raises(ReplicaFailed, match="exit code 3"):
        launched(job, cluster)
    assert ("DELETE", RESOURCE.path("team", job.name)) in cluster.asked


def test_all_that_would_keep_a_job_from_running_is_told_at_once() -> None:
    job = a_job(
        nodes=2,
        gpus=4,
        volumes=["claim:data:/data"],
        node_selector={"zone": "a"},
    )
    cluster = a_cluster(job, None)
    cluster.objects[REVIEWS] = {"status": {"allowed": False}}
    allocatable = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"}
    node = {"metadata": {"labels": {"zone": "a"}}, "status": {"allocatable": allocatable}}
    cluster.objects["/api/v1/nodes"] = a_list(node)
    quota = {"metadata": {"name": "small"}, "status": {"hard": {"pods": "3"}, "used": {"pods": "2"}}}
    cluster.objects["/api/v1/namespaces/team/resourcequotas"] = a_list(quota)
    with pytest.raises(PreflightFailed) as caught:
        check(cluster, job, BACKEND, manifest(job))
    for words in (
        'add to its Role {apiGroups: ["kubeflow.org"], resources: ["pytorchjobs"], verbs: [create, get,',
        'resources: ["pods/log"]',
        "PersistentVolumeClaim data does not exist",
        "4 of nvidia.com/gpu asked, the largest node has 2",
        "quota small of namespace team leaves 1 of pods (2 of 3 in use), the job needs 2",
    ):
        assert words in str(caught.value)


def test_what_may_not_be_read_is_not_held_against_a_job() -> None:
    job = a_job(volumes=["secret:key:/key"])
    cluster = a_cluster(job, None)
    forbidden = Refused(403, "Forbidden", "no")
    for path in (
        "/api/v1/nodes",
        "/api/v1/namespaces/team/secrets/key",
        "/api/v1/namespaces/team/resourcequotas",
    ):
        cluster.objects[path] = forbidden
    check(cluster, job, BACKEND, manifest(job))


def test_an_outage_is_ridden_out_and_a_refusal_is_not() -> None:
    answers: list[Any] = [Unanswered("refused"), Refused(429, "", ""), Refused(500, "", ""), "here"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert patiently(ask, budget=5) == "here"
    answers.append(Refused(404, "NotFound", ""))
    with pytest.raises(Refused):
        patiently(ask, budget=5)


def test_a_dropped_watch_lists_again_and_sees_what_it_missed() -> None:
    before, after = a_pod(a_job(), "worker-0"), a_pod(a_job(), "worker-1")
    added = json.dumps({"type": "ADDED", "object": after}).encode()
    cluster = FakeCluster({PODS: a_list(before)}, streams={PODS: [[added, Unanswered("cut")]]})
    messages: SimpleQueue[Message] = SimpleQueue()
    stop = Event()
    start(cluster, Source(name="pods", path=PODS, select={}), messages.put, stop)
    pictures = [messages.get(timeout=5), messages.get(timeout=5)]
    assert isinstance(messages.get(timeout=5), Trouble)
    cluster.objects[PODS] = a_list(after)
    pictures.append(messages.get(timeout=5))
    stop.set()
    uids = [set(picture.objects) for picture in pictures if isinstance(picture, Picture)]
    assert uids == [{"worker-0-uid"}, {"worker-0-uid", "worker-1-uid"}, {"worker-1-uid"}]


def orphan(job: TrainingJob, *conditions: str) -> dict[str, Any]:
    found = an_object(job, *conditions)
    found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "step", "uid": "step-uid"}]
    return found


@pytest.mark.parametrize(
    ("phase", "conditions", "keep", "swept"),
    [
        ("Failed", ["Running"], Keep.NEVER, True),
        ("Running", ["Running"], Keep.NEVER, False),
        ("Failed", ["Failed"], Keep.FAILED, False),
        ("Failed", ["Succeeded"], Keep.FAILED, True),
    ],
)
def test_only_jobs_whose_run_is_over_and_that_are_not_kept_are_swept(
    phase: str, conditions: list[str], keep: Keep, swept: bool
) -> None:
    job = a_job(keep=keep)
    cluster = a_cluster(job, orphan(job, *conditions))
    cluster.objects[f"{PODS}/step"] = {"metadata": {"uid": "step-uid"}, "status": {"phase": phase}}
    assert [found.name for found in sweep(cluster, "team")] == ([job.name] if swept else [])


def test_a_run_that_is_gone_is_over_and_one_that_can_not_be_seen_is_not() -> None:
    job = a_job()
    cluster = a_cluster(job, orphan(job, "Running"))
    assert list_jobs(cluster, "team")[0].run_over is True
    cluster.objects[f"{PODS}/step"] = Refused(403, "Forbidden", "no")
    assert list_jobs(cluster, "team")[0].run_over is None
    assert sweep(cluster, "team") == []


def test_a_run_that_is_named_is_swept_whatever_its_state() -> None:
    job = a_job()
    cluster = a_cluster(job, an_object(job, "Running"))
    assert sweep(cluster, "team", run="another") == []
    assert len(sweep(cluster, "team", run="run-1")) == 1


def test_a_job_that_is_to_be_kept_outlives_its_run() -> None:
    job = a_job(keep=Keep.FAILED)
    assert sweep(a_cluster(job, an_object(job, "Failed")), "team", run="run-1") == []
    assert len(sweep(a_cluster(job, an_object(job, "Running")), "team", run="run-1")) == 1
