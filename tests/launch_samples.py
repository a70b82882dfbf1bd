"""Small builders for the launcher's tests: jobs, API objects, and a cluster that holds them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from ddpipe.launch.backends.pytorchjob import manifest
from ddpipe.launch.cluster import Query, Refused, Unanswered
from ddpipe.launch.job import Owner, TrainingJob

UID = "job-uid"


def a_job(**changes: Any) -> TrainingJob:
    owner = Owner(pipeline="digits", run_id="run-1", step="train")
    given = {
        "owner": owner,
        "namespace": "team",
        "image": "trainer:1",
        "nodes": 2,
        **changes,
    }
    return TrainingJob(**given)


def an_object(job: TrainingJob, *conditions: str, **spec: object) -> dict[str, Any]:
    """The job as the API server shows it; a condition written "Running=False" has status False."""
    body = manifest(job)
    body["metadata"] |= {"uid": UID, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"] |= spec
    pairs = [condition.partition("=") for condition in conditions]
    body["status"] = {
        "conditions": [
            {"type": kind, "status": status or "True", "message": f"it is {kind}"}
            for kind, _, status in pairs
        ]
    }
    return body


def a_pod(job: TrainingJob, rank: str = "worker-0", phase: str = "Running", **changes: Any) -> dict[str, Any]:
    """A pod of the job; `state` is its container's; `metadata`, `status`, `container` add to those parts."""
    name = f"{job.name}-{rank}"
    state = changes.get("state", {"running": {}})
    container = {"name": "pytorch", "restartCount": 0, "state": state, **changes.get("container", {})}
    metadata = {"name": name, "uid": f"{rank}-uid", "resourceVersion": "1", "ownerReferences": [{"uid": UID}]}
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


@dataclass
class FakeCluster:
    """An API server of a few objects by path; proves our branches only.

    Attributes:
        objects: By path; an ApiError is raised in place of an answer.
        streams: What a watch or log gives, by path: one list per request.
        asked: Every request so far, as (method, path).
    """

    objects: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    namespace: str = "team"
    _silence: Event = field(default_factory=Event)

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        self.asked.append(("GET", path))
        return self._answer(path)

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        dry = "?dryRun" if query and "dryRun" in query else ""
        self.asked.append(("POST", path + dry))
        return self._answer("POST " + path + dry, dict(body))

    def delete(self, path: str, uid: str) -> None:
        self.asked.append(("DELETE", path))
        self._answer(path)
        del self.objects[path]

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        self.asked.append(("STREAM", path))
        if not self.streams.get(path):
            self._silence.wait(5)
            raise Unanswered("silence")
        for line in self.streams[path].pop(0):
            if isinstance(line, Exception):
                raise line
            yield line

    def spare(self) -> FakeCluster:
        return self

    def _answer(self, path: str, otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
        found = self.objects.get(path, otherwise)
        if found is None:
            raise Refused(404, "NotFound", f"{path} not found", path.rpartition("/")[2])
        if isinstance(found, Exception):
            raise found
        return found
