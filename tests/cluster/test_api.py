"""A real API server does what the fake one of the unit tests does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from api_cases import CASES, Case, a_watch_of_an_old_version_has_expired
from place import delete, patch

from ddpipe.jobs.pytorchjob import RESOURCE as PYTORCHJOBS
from ddpipe.kube.api import ApiServer
from ddpipe.kube.resources import CONFIGS

pytestmark = pytest.mark.cluster


@pytest.fixture
def path(admin: ApiServer) -> Iterator[str]:
    """The config maps of a namespace of the test's own."""
    name = f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield CONFIGS.path(name)
    for item in admin.get(CONFIGS.path(name))["items"]:
        if "finalizers" in item["metadata"]:
            patch(
                admin, f"{CONFIGS.path(name)}/{item['metadata']['name']}", {"metadata": {"finalizers": None}}
            )
    delete(admin, f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_server_does_what_the_fake_does(case: Case, admin: ApiServer, path: str) -> None:
    if case is a_watch_of_an_old_version_has_expired:
        # A new server may still know all that happened to config maps, but not to a kind that came later.
        path = PYTORCHJOBS.path("default")
    case(admin, path)
