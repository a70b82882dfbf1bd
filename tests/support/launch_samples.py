"""Small builders for the launcher's tests: jobs, API objects, and a server that has them."""

from __future__ import annotations

from typing import Any

from fake_api import FakeApiServer

from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.jobs.pytorchjob import RESOURCE, manifest
from ddpipe.kube import resources

UID = "job-uid"


HIGH = {"spec": {"priorityClassName": "high"}}
"""A patch: the pods have this priority class."""


def a_job(**changes: Any) -> TrainingJob:
    """A job; `outage` is one of its deadlines."""
    if "outage" in changes:
        changes["deadlines"] = {**changes.get("deadlines", {}), "outage": changes.pop("outage")}
    owner = Owner(pipeline="digits", run_id="run-1", step="train")
    given = {
        "owner": owner,
        "namespace": "team",
        "image": "trainer:1",
        "backend": "pytorchjob",
        "nodes": 2,
        **changes,
    }
    return TrainingJob(**given)


def an_object(job: TrainingJob, *conditions: str, **spec: object) -> dict[str, Any]:
    """The job as the API server shows it; a condition written "Running=False" has status False."""
    body = manifest(job)
    body["metadata"] |= {"uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"] |= spec
    pairs = [condition.partition("=") for condition in conditions]
    body["status"] = {
        "conditions": [
            {"type": kind, "status": status or "True", "message": f"it is {kind}"}
            for kind, _, status in pairs
        ],
        "replicaStatuses": {"Worker": {"succeeded": job.nodes if "Succeeded" in conditions else 0}},
    }
    return body


def a_pod(job: TrainingJob, rank: str = "worker-0", phase: str = "Running", **changes: Any) -> dict[str, Any]:
    """A pod of the job; `state` is its container's; `metadata`, `status`, `container` add to those parts."""
    name = f"{job.name}-{rank}"
    state = changes.get("state", {"running": {}})
    container = {"name": "pytorch", "restartCount": 0, "state": state, **changes.get("container", {})}
    metadata: dict[str, Any] = {"name": name, "uid": f"{rank}-uid", "labels": {"ddpipe.dev/job": job.name}}
    metadata["ownerReferences"] = [{"uid": UID}]
    resources = {"limits": {"memory": "64Mi"}}
    return {
        "metadata": {**metadata, **changes.get("metadata", {})},
        "spec": {
            "nodeName": changes.get("node", "n1"),
            "containers": [{"name": "pytorch", "resources": resources}],
        },
        "status": {"phase": phase, "containerStatuses": [container], **changes.get("status", {})},
    }


def ended(
    code: int, at: str = "2026-01-01T00:00:10Z", reason: str = "Error", message: str = ""
) -> dict[str, Any]:
    """A container's state after its end."""
    return {"terminated": {"exitCode": code, "finishedAt": at, "reason": reason, "message": message}}


JOBS, PODS = RESOURCE.path("team"), resources.PODS.path("team")
EVENTS, QUOTAS = resources.EVENTS.path("team"), resources.QUOTAS.path("team")


def a_server(found: dict[str, Any] | None = None, *pods: dict[str, Any]) -> FakeApiServer:
    """A server with PyTorchJobs, this job and these pods of it, whose logs are empty."""
    server = FakeApiServer()
    known = (resources.PODS, resources.EVENTS, resources.QUOTAS, resources.CLAIMS, resources.CONFIGS)
    server.serve(RESOURCE, *known)
    if found:
        server.put(JOBS, found)
    for pod in pods:
        server.put(PODS, pod)
        server.logs[f"{PODS}/{pod['metadata']['name']}/log"] = [[]]
    return server
