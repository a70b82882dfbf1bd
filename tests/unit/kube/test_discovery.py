"""What a cluster knows, as far as this account may see it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_api import FakeApiServer

from ddpipe.kube.api import Refused, Unanswered
from ddpipe.kube.cluster import is_served, spec_schema
from ddpipe.kube.resources import Resource

RELAYS = Resource(group="sports.example", version="v2", plural="relays", kind="Relay")
JUMPS = Resource(group="sports.example", version="v2", plural="jumps", kind="Jump")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def test_a_kind_is_served_by_its_own_name_and_group() -> None:
    server = FakeApiServer()
    assert not is_served(server, RELAYS)
    server.serve(JUMPS)
    assert not is_served(server, RELAYS)
    server.serve(RELAYS)
    assert is_served(server, RELAYS)


def test_a_forbidden_kind_is_not_served_and_an_outage_an_error() -> None:
    server = FakeApiServer()
    server.serve(RELAYS)
    server.fail(lambda _: True, Refused(403, "Forbidden", "no"), times=1)
    assert not is_served(server, RELAYS)
    for error in (Unanswered("cut"), Refused(500, "", "etcd")):
        server.fail(lambda _: True, error, times=1)
        with pytest.raises(type(error)):
            is_served(server, RELAYS)


def a_crd(**versions: dict[str, Any]) -> dict[str, Any]:
    listed = [
        {"name": name, "schema": {"openAPIV3Schema": {"properties": {"spec": spec}}}}
        for name, spec in versions.items()
    ]
    return {"metadata": {"name": RELAYS.full_name}, "spec": {"versions": listed}}


def test_the_schema_is_that_of_the_version_that_is_used() -> None:
    server = FakeApiServer()
    assert spec_schema(server, RELAYS) is None
    server.know(CRDS, a_crd(v1={"properties": {"old": {}}}, v2={"properties": {"legs": {}}}))
    assert spec_schema(server, RELAYS) == {"legs": {}}
    server.put(CRDS, a_crd(v1={"properties": {"old": {}}}))
    assert spec_schema(server, RELAYS) is None
    server.put(CRDS, a_crd(v2={"x-kubernetes-preserve-unknown-fields": True}))
    assert spec_schema(server, RELAYS) is None
