"""The owned_objects of a job are created with it and owned by it; those of others are left alone."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from typing import Any

import pytest
from fake_api import FakeApiServer, Request
from launch_samples import QUOTAS, a_job

from ddpipe.errors import NameTaken, PodRefused, PreflightFailed
from ddpipe.jobs.backend import all_backends
from ddpipe.jobs.indexedjob import BACKEND, manifest
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube import resources
from ddpipe.kube.api import Refused
from ddpipe.kube.resources import JOBS, SECRETS, SERVICES
from ddpipe.launching import adoption
from ddpipe.launching.adoption import Attempt, create_owned_objects
from ddpipe.launching.launcher import Outcome, launch

JOB = a_job(backend="indexedjob", outage=0.5, deadlines={"hopeless": 0.1})
SERVICE = SERVICES.path("team", JOB.name)


def a_server() -> FakeApiServer:
    """A server on which a job succeeds as soon as its service is there."""
    server = FakeApiServer()
    server.serve(JOBS, SERVICES, resources.PODS, resources.EVENTS, resources.QUOTAS)

    def succeed(made: dict[str, Any]) -> None:
        if made["kind"] == "Service":
            job = server.get(JOBS.path("team", JOB.name))
            done = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": JOB.nodes}
            server.put(JOBS.path("team"), {**job, "status": done})

    server.created = succeed
    return server


def run(server: FakeApiServer, job: TrainingJob = JOB) -> Outcome:
    return launch(job, server, exists=lambda _: True, out=io.StringIO())


def service(**owner: str) -> dict[str, Any]:
    """A service of the name that ours has."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", **owner}
    return {"metadata": {"name": JOB.name, "namespace": "team", "ownerReferences": [reference]}}


def is_create(request: Request) -> bool:
    return request.method == "POST" and request.path == SERVICES.path("team") and not request.query


def test_it_belongs_to_the_job_and_goes_with_it() -> None:
    server = a_server()
    seen: list[dict[str, Any]] = []
    succeed = server.created
    server.created = lambda made: (seen.append(made), succeed(made))[1]  # type: ignore[func-returns-value]
    outcome = run(server)
    (reference,) = next(made for made in seen if made["kind"] == "Service")["metadata"]["ownerReferences"]
    assert reference == {"apiVersion": "batch/v1", "kind": "Job", "name": JOB.name, "uid": outcome.uid}
    with pytest.raises(Refused, match="not found"):
        server.get(SERVICE)


def test_hidden_variables_are_in_a_secret_that_the_job_owns() -> None:
    """Who may read pods and jobs sees its name only."""
    server, seen, job = a_server(), list[dict[str, Any]](), replace(JOB, hidden={"KEY": "only for pods"})
    server.serve(SECRETS)
    succeed = server.created
    server.created = lambda made: (seen.append(made), succeed(made))[1]  # type: ignore[func-returns-value]
    outcome = run(server, job)
    made = {one["kind"]: one for one in seen}
    assert made["Secret"]["stringData"] == {"KEY": "only for pods"}
    assert made["Secret"]["metadata"]["ownerReferences"][0]["uid"] == outcome.uid
    reference = {"secretKeyRef": {"name": JOB.name, "key": "KEY"}}
    assert "only for pods" not in str(made["Job"]) + repr(job)
    for backend in all_backends():
        (container,) = backend.pod(job)["spec"]["containers"]
        assert {"name": "KEY", "valueFrom": reference} in container["env"]


def test_an_attempt_that_died_in_between_is_made_good() -> None:
    server = a_server()
    server.fail(is_create, Refused(500, "", "died"))
    with pytest.raises(Exception, match="died"):
        run(server)
    assert len(server.get(JOBS.path("team"))["items"]) == 1
    server._faults.clear()
    assert run(server).adopted


def test_one_that_is_there_already_is_left_as_it_is() -> None:
    server = a_server()
    found = server.put(JOBS.path("team"), manifest(JOB))
    attempt = Attempt(server, JOB, JOB, BACKEND, lambda _: None)
    create_owned_objects(attempt, found)
    before = server.get(SERVICE)
    create_owned_objects(attempt, found)
    assert server.get(SERVICE) == before


def test_a_job_that_is_over_is_left_alone() -> None:
    server = a_server()
    run(server, a_job(backend="indexedjob", keep="always"))
    server.drop(SERVICE)
    assert run(server, a_job(backend="indexedjob", keep="always")).adopted
    assert len(list(filter(is_create, server.asked))) == 1


def test_an_earlier_job_s_is_waited_for() -> None:
    server = a_server()
    server.put(SERVICES.path("team"), service(name=JOB.name, uid="of-an-earlier-attempt"))
    collector = threading.Timer(0.3, server.drop, [SERVICE])
    collector.start()
    assert not run(server).adopted
    collector.join()


def test_a_stranger_s_is_left_alone_and_the_job_is_removed() -> None:
    server = a_server()
    server.put(SERVICES.path("team"), service(name="another", uid="1"))
    with pytest.raises(NameTaken, match=r"Service team/.*does not belong to the job"):
        run(server)
    assert server.get(SERVICE)
    assert server.get(JOBS.path("team"))["items"] == []


def test_an_earlier_job_s_that_never_goes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "_COLLECTION_SECONDS", 0.2)
    server = a_server()
    server.put(SERVICES.path("team"), service(name=JOB.name, uid="of-an-earlier-attempt"))
    with pytest.raises(NameTaken):
        run(server)


def test_a_job_whose_service_is_refused_is_removed() -> None:
    server = a_server()
    server.fail(is_create, Refused(403, "Forbidden", "exceeded quota: none"))
    with pytest.raises(PodRefused, match="exceeded quota: none"):
        run(server)
    assert server.get(JOBS.path("team"))["items"] == []


def test_a_busy_server_is_asked_again_whether_it_can_be_created() -> None:
    server = a_server()
    is_dry_run = lambda request: request.path == SERVICES.path("team") and bool(request.query)  # noqa: E731
    server.fail(is_dry_run, Refused(429, "TooManyRequests", "busy"), times=1)
    assert not run(server).adopted


def test_what_keeps_it_from_being_created_is_known_before_the_job_is() -> None:
    server = a_server()
    server.allowed = lambda asked: asked["resource"] != "services"
    server.fail(
        lambda request: request.path == SERVICES.path("team") and bool(request.query),
        Refused(422, "Invalid", "no such service"),
    )
    full = {"hard": {"count/services": "1"}, "used": {"count/services": "1"}}
    server.put(QUOTAS, {"metadata": {"name": "small"}, "spec": {}, "status": full})
    with pytest.raises(PreflightFailed) as caught:
        run(server)
    assert 'resources: ["services"], verbs: [create, get]' in caught.value.seen
    assert "no such service" in caught.value.seen
    assert "leaves 0 of count/services" in caught.value.seen
    assert server.get(JOBS.path("team"))["items"] == []
