"""Which backend is chosen where none is named."""

from __future__ import annotations

from itertools import count

import pytest
from fake_api import FakeApiServer
from launch_samples import HIGH, a_job

from ddpipe.errors import ClusterUnreachable, ParameterError, PreflightFailed
from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.cluster import Refused, Unanswered
from ddpipe.kube.resources import PODS, Resource
from ddpipe.launching.preflight import candidates, choose
from ddpipe.parameters import AUTO

KINDS = {name: backend(name).resource for name in BACKENDS}
TRAINJOBS = KINDS["trainjob"]
ANY: dict[str, object] = {}
OLD = {"podSpecOverrides": {"items": {"properties": {"volumes": ANY}}}}


def a_server(*kinds: str, trainer: dict[str, object] | None = None) -> FakeApiServer:
    """A cluster with these kinds of jobs, and this Trainer."""
    server = FakeApiServer()
    server.serve(PODS, *(KINDS[name] for name in kinds))
    if trainer:
        server.describe(TRAINJOBS, **trainer)
    return server


def chosen(server: FakeApiServer, job: TrainingJob | None = None) -> tuple[Resource, str]:
    """The kind of job, and what was printed."""
    said: list[str] = []
    job = job or a_job(backend=AUTO)
    kind = choose(server, job, candidates(job), said.append)
    return kind.resource, "\n".join(said)


def test_the_order_is_that_of_the_table() -> None:
    assert list(BACKENDS) == ["trainjob", "pytorchjob", "indexedjob"]
    assert list(candidates(a_job(backend=AUTO))) == list(BACKENDS)


def test_the_first_kind_that_fits_is_taken() -> None:
    assert chosen(a_server(*KINDS, trainer=None), a_job(backend=AUTO, runtime="ours")) == (
        TRAINJOBS,
        "backend trainjob",
    )
    assert chosen(a_server("pytorchjob", "indexedjob")) == (
        KINDS["pytorchjob"],
        "backend pytorchjob; not trainjob: not on this cluster",
    )
    kind, said = chosen(a_server("indexedjob"))
    assert kind == KINDS["indexedjob"]
    assert said == (
        "backend indexedjob; not trainjob: not on this cluster; not pytorchjob: not on this cluster"
    )


def test_a_kind_without_rights_is_skipped_with_the_rule() -> None:
    server = a_server("trainjob", "pytorchjob")
    server.allowed = lambda asked: asked["resource"] != "trainjobs"
    kind, said = chosen(server)
    assert kind == KINDS["pytorchjob"]
    assert 'add to its Role {apiGroups: ["trainer.kubeflow.org"], resources: ["trainjobs"]' in said


def test_a_trainer_without_the_fields_needs_a_runtime() -> None:
    server = a_server("trainjob", "pytorchjob", trainer=OLD)
    kind, said = chosen(server)
    assert kind == KINDS["pytorchjob"]
    assert "does not have the pods' metadata, spec.securityContext" in said
    assert chosen(server, a_job(backend=AUTO, runtime="ours"))[0] == TRAINJOBS


def test_a_kind_without_a_field_for_an_option_is_skipped() -> None:
    server = a_server("trainjob", "pytorchjob", trainer=OLD)
    kind, said = chosen(server, a_job(backend=AUTO, runtime="ours", patch=HIGH))
    assert kind == KINDS["pytorchjob"]
    assert "spec.priorityClassName" in said
    assert "trainjob" not in candidates(a_job(backend=AUTO, scheduling={"minAvailable": 2}))


def test_options_of_no_kind_are_rejected_without_a_cluster() -> None:
    with pytest.raises(ParameterError, match="has no name"):
        candidates(a_job(backend=AUTO, patch={"spec": {"containers": [{"image": "other:1"}]}}))


def test_a_retry_takes_the_kind_of_the_earlier_attempt() -> None:
    server = a_server(*KINDS)
    job = a_job(backend=AUTO, runtime="ours")
    server.put(KINDS["pytorchjob"].path("team"), backend("pytorchjob").manifest(job, None))
    assert chosen(server, job) == (
        KINDS["pytorchjob"],
        "backend pytorchjob: an earlier attempt uses it",
    )


def test_another_owner_s_job_is_no_earlier_attempt() -> None:
    server = a_server("trainjob", "pytorchjob")
    job = a_job(backend=AUTO, runtime="ours")
    server.put(KINDS["pytorchjob"].path("team"), {"metadata": {"name": job.name, "annotations": {}}})
    assert chosen(server, job)[0] == TRAINJOBS


def test_a_named_kind_is_taken_without_a_request() -> None:
    server = a_server()
    assert chosen(server, a_job(backend="trainjob")) == (TRAINJOBS, "")
    assert server.asked == []


def test_without_a_usable_kind_all_reasons_are_listed() -> None:
    server = a_server("indexedjob")
    server.allowed = lambda _: False
    with pytest.raises(PreflightFailed) as caught:
        chosen(server)
    assert "not trainjob: not on this cluster" in caught.value.seen
    assert 'resources: ["jobs"], verbs: [create' in caught.value.seen


def test_a_flaky_server_repeats_single_requests() -> None:
    """At 30 % of 429s: not the whole choice again for each."""
    healthy, flaky = (a_server(*KINDS, trainer=None) for _ in range(2))
    requests = count(1)
    flaky.fail(lambda _: next(requests) % 10 in {1, 4, 7}, Refused(429, "TooManyRequests", "busy"))
    job = a_job(backend=AUTO, runtime="ours")
    assert chosen(healthy, job) == chosen(flaky, job)
    assert len(flaky.asked) <= 1.6 * len(healthy.asked)


def test_a_server_that_stays_away_is_an_outage() -> None:
    server = a_server(*KINDS)
    server.fail(lambda _: True, Unanswered("connection refused"))
    with pytest.raises(ClusterUnreachable, match="connection refused"):
        chosen(server, a_job(backend=AUTO, outage=0.1))
