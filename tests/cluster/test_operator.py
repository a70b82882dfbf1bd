"""The Training Operator is stopped: before a job is created, before it is taken up, while it runs.

These stop the cluster's only operator, so they run alone, one after the other, and put it back even if a
test fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import JOB_NAME, running
from place import Place, a_place, eventually, patch
from step import launch

from ddpipe.kube.api import ApiServer

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture
def place(admin: ApiServer, tmp_path: Path) -> Iterator[Place]:
    with a_place(admin, tmp_path) as place:
        yield place


@contextlib.contextmanager
def stopped(admin: ApiServer) -> Iterator[None]:
    """No operator, until the end of the block."""
    found = [
        item for item in admin.get(_DEPLOYMENTS)["items"] if item["metadata"]["name"] == "training-operator"
    ]
    if not found:
        pytest.skip("this cluster has no deployment training-operator to stop")
    namespace = found[0]["metadata"]["namespace"]
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/training-operator"

    def pods() -> int:
        items = admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return sum(
            pod["metadata"]["name"].startswith("training-operator") and pod["status"]["phase"] == "Running"
            for pod in items  # those that were evicted stay
        )

    patch(admin, path, {"spec": {"replicas": 0}})
    try:
        assert eventually(pods, lambda count: count == 0) == 0
        yield
    finally:
        patch(admin, path, {"spec": {"replicas": 1}})
        ready = eventually(lambda: admin.get(path)["status"].get("readyReplicas"), bool)
        assert ready, "the operator does not come back"


@contextlib.contextmanager
def unasked(admin: ApiServer) -> Iterator[None]:
    """The operator's webhook is skipped while it cannot answer."""
    hooks = [
        item
        for item in admin.get(_HOOKS)["items"]
        if any("pytorchjob" in hook["name"] for hook in item["webhooks"])
    ]
    for item in hooks:
        lenient = [{**hook, "failurePolicy": "Ignore"} for hook in item["webhooks"]]
        patch(admin, f"{_HOOKS}/{item['metadata']['name']}", {"webhooks": lenient})
    try:
        yield
    finally:
        for item in hooks:
            patch(admin, f"{_HOOKS}/{item['metadata']['name']}", {"webhooks": item["webhooks"]})


def test_an_operator_that_is_away_is_named_before_anything_is_created(place: Place) -> None:
    with stopped(place.admin):
        ended = launch(place, "true", "--deadlines", "reconciled=3").end()
    assert ended.code == 53, ended.text
    assert "the Training Operator does not answer" in ended.text
    assert place.jobs_ever() == 0


def test_a_job_that_the_operator_never_takes_up_is_removed(place: Place) -> None:
    with stopped(place.admin), unasked(place.admin):
        ended = launch(place, "true", "--deadlines", "reconciled=5").end()
        assert place.jobs() == []
    assert ended.code == 53, ended.text
    assert "nothing happened to it for 5 s" in ended.text


def test_an_operator_that_is_away_for_a_while_delays_the_end_only(place: Place) -> None:
    step = running(place, "sleep 3")
    with stopped(place.admin):
        step.saw("2 of 2 pods, 2 ended")
        assert step.process.poll() is None
    ended = step.end()
    assert ended.code == 0, ended.text
    assert place.jobs_ever() == 1
    assert JOB_NAME in ended.text
