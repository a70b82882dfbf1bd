"""Which kind of job is launched where none is named."""

from __future__ import annotations

import pytest
from fake_api import FakeApiServer
from launch_samples import a_job

from ddpipe.errors import ParameterError, PreflightFailed
from ddpipe.jobs import AUTO, BACKENDS
from ddpipe.jobs.backend import backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.resources import PODS, Resource
from ddpipe.launching.choosing import candidates, choose

KINDS = {name: backend(name).resource for name in BACKENDS}
TRAINJOBS = KINDS["trainjob"]
ANY: dict[str, object] = {}
NEW = {"runtimePatches": ANY}
"""All that a Trainer may have in its CRD, with a place for everything."""
OLD = {"podSpecOverrides": {"items": {"properties": {"volumes": ANY}}}}


def a_server(*kinds: str, trainer: dict[str, object] | None = None) -> FakeApiServer:
    """A cluster with these kinds of jobs, and this Trainer."""
    server = FakeApiServer()
    server.serve(PODS, *(KINDS[name] for name in kinds))
    if trainer:
        server.describe(TRAINJOBS, **trainer)
    return server


def chosen(server: FakeApiServer, job: TrainingJob | None = None) -> tuple[Resource, str]:
    """The kind of job, and what was said."""
    said: list[str] = []
    job = job or a_job(backend=AUTO)
    kind = choose(server, job, candidates(job), said.append)
    return kind.resource, "\n".join(said)


def test_the_order_is_that_of_the_table() -> None:
    assert list(BACKENDS) == ["trainjob", "pytorchjob", "indexedjob"]
    assert list(candidates(a_job(backend=AUTO))) == list(BACKENDS)


def test_the_first_kind_that_fits_is_taken_and_it_is_told_why_not_those_before_it() -> None:
    assert chosen(a_server(*KINDS, trainer=None), a_job(backend=AUTO, runtime="ours")) == (
        TRAINJOBS,
        "backend trainjob",
    )
    assert chosen(a_server("pytorchjob", "indexedjob")) == (
        KINDS["pytorchjob"],
        "backend pytorchjob; no trainjob: not on this cluster",
    )
    kind, said = chosen(a_server("indexedjob"))
    assert kind == KINDS["indexedjob"]
    assert said == (
        "backend indexedjob; no trainjob: not on this cluster; no pytorchjob: not on this cluster"
    )


def test_a_kind_that_this_account_may_not_use_is_passed_over_with_the_rule_that_is_missing() -> None:
    server = a_server("trainjob", "pytorchjob")
    server.allowed = lambda asked: asked["resource"] != "trainjobs"
    kind, said = chosen(server)
    assert kind == KINDS["pytorchjob"]
    assert 'add to its Role {apiGroups: ["trainer.kubeflow.org"], resources: ["trainjobs"]' in said


def test_a_trainer_that_cannot_give_pods_what_they_need_is_passed_over_unless_a_runtime_does() -> None:
    server = a_server("trainjob", "pytorchjob", trainer=OLD)
    kind, said = chosen(server)
    assert kind == KINDS["pytorchjob"]
    assert "no place for the pods' metadata, spec.securityContext" in said
    assert chosen(server, a_job(backend=AUTO, runtime="ours"))[0] == TRAINJOBS


def test_a_kind_that_has_no_place_for_what_is_asked_for_is_passed_over() -> None:
    server = a_server("trainjob", "pytorchjob", trainer=OLD)
    kind, said = chosen(server, a_job(backend=AUTO, runtime="ours", priority_class="high"))
    assert kind == KINDS["pytorchjob"]
    assert "spec.priorityClassName" in said
    assert "trainjob" not in candidates(a_job(backend=AUTO, scheduling={"minAvailable": 2}))


def test_what_no_kind_can_do_is_refused_without_a_cluster() -> None:
    with pytest.raises(ParameterError, match="does not say by its name"):
        candidates(a_job(backend=AUTO, patch={"spec": {"containers": [{"image": "other:1"}]}}))


def test_a_retry_takes_the_kind_that_has_begun_whatever_the_cluster_has_since() -> None:
    server = a_server(*KINDS)
    job = a_job(backend=AUTO, runtime="ours")
    server.put(KINDS["pytorchjob"].path("team"), backend("pytorchjob").manifest(job, None))
    assert chosen(server, job) == (
        KINDS["pytorchjob"],
        "backend pytorchjob: an earlier attempt has begun with it",
    )


def test_a_stranger_s_job_of_the_name_is_no_earlier_attempt() -> None:
    server = a_server("trainjob", "pytorchjob")
    job = a_job(backend=AUTO, runtime="ours")
    server.put(KINDS["pytorchjob"].path("team"), {"metadata": {"name": job.name, "annotations": {}}})
    assert chosen(server, job)[0] == TRAINJOBS


def test_a_kind_that_is_named_is_not_looked_for() -> None:
    server = a_server()
    assert chosen(server, a_job(backend="trainjob")) == (TRAINJOBS, "")
    assert server.asked == []


def test_where_nothing_fits_all_reasons_are_told() -> None:
    server = a_server("indexedjob")
    server.allowed = lambda _: False
    with pytest.raises(PreflightFailed) as caught:
        chosen(server)
    assert "no trainjob: not on this cluster" in caught.value.seen
    assert 'resources: ["jobs"], verbs: [create' in caught.value.seen
