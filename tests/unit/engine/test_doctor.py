"""`ddpipe doctor`: each check is ok, unknown from here, or fails with its fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_commands import ddpipe
from kfp_server import Server

from ddpipe.engine.client import Endpoint, connect
from ddpipe.engine.doctor import Check, State, examine
from ddpipe.engine.package import read_package
from ddpipe.errors import ClusterUnreachable, EngineError
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.pipelines.compile import COMPILED

TRAINING = read_package(COMPILED / "ddpipe-training.yaml")


@dataclass
class Kubernetes:
    """What the checks ask of a cluster: its secrets, with their keys; or it refuses every request."""

    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refusal: Exception | None = None

    def get(self, path: str) -> dict[str, Any]:
        if self.refusal:
            raise self.refusal
        name = path.rpartition("/")[2]
        if name not in self.secrets:
            raise Refused(404, "NotFound", f"secrets {name} not found")
        return {"data": dict.fromkeys(self.secrets[name], "")}


def checks(server: Server, cluster: object, namespace: str = "") -> dict[str, Check]:
    """By name."""
    reached = Endpoint(url=server.url, namespace=namespace)
    found = examine(lambda: connect(reached), lambda: cluster, TRAINING, "2.15.2")  # type: ignore[arg-type,return-value]
    return {one.name: one for one in found}


def test_unknown_checks_are_no_failure(server: Server) -> None:
    result = ddpipe("doctor")
    assert result.exit_code == 0
    lines = [line.split()[:2] for line in result.stdout.splitlines()]
    for name in ("endpoint", "login", "namespace", "version"):
        assert [name, "ok"] in lines
    assert ["secret", "unknown"] in lines
    assert "Set KUBECONFIG" in result.stdout


def test_expired_login_is_not_a_wrong_address(server: Server) -> None:
    server.cookie = "authservice_session=fresh"
    result = ddpipe("doctor")
    assert result.exit_code == EngineError.exit_code
    lines = [line.split()[:2] for line in result.stdout.splitlines()]
    assert ["endpoint", "ok"] in lines
    assert ["login", "fail"] in lines
    assert "KFP_COOKIES" in result.stdout


def test_address_where_nothing_is_ends_the_examination(server: Server) -> None:
    result = ddpipe("doctor", "--endpoint", "http://127.0.0.1:1")
    assert result.exit_code == EngineError.exit_code
    assert result.stdout.startswith("endpoint  fail")
    assert "secret" not in result.stdout


def test_missing_or_foreign_namespace_is_reported(server: Server) -> None:
    server.namespaces = ("team-a",)
    for namespace in ("", "team-b"):
        found = checks(server, Kubernetes(), namespace=namespace)
        assert found["namespace"].state == State.FAIL
        assert "namespace" in found["namespace"].fix.lower() or "KFP_NAMESPACE" in found["namespace"].fix
    assert checks(server, Kubernetes(), namespace="team-a")["namespace"].state == State.OK


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.17.0", State.OK), ("2.15.2", State.OK), ("2.5.0", State.FAIL), ("unknown", State.UNKNOWN)],
)
def test_server_that_is_too_old_for_the_package_is_reported(
    server: Server, version: str, state: State
) -> None:
    server.version = version
    assert checks(server, Kubernetes())["version"].state == state


@pytest.mark.parametrize(
    ("keys", "state"),
    [(("accesskey", "secretkey"), State.OK), (("accesskey",), State.FAIL), (None, State.FAIL)],
)
def test_secret_of_the_store_needs_both_keys(
    server: Server, keys: tuple[str, ...] | None, state: State
) -> None:
    secrets = {"mlpipeline-minio-artifact": keys} if keys else {}
    assert checks(server, Kubernetes(secrets=secrets))["secret"].state == state


@pytest.mark.parametrize("refusal", [Refused(403, "Forbidden", "no"), Unanswered("silence")])
def test_what_this_account_may_not_see_is_unknown(server: Server, refusal: Exception) -> None:
    assert checks(server, Kubernetes(refusal=refusal))["secret"].state == State.UNKNOWN


def test_cluster_that_is_not_there_is_unknown(server: Server) -> None:
    def nowhere() -> Any:
        raise ClusterUnreachable(what="", which="", seen="no kubeconfig", do="")

    found = [*examine(lambda: connect(Endpoint(url=server.url)), nowhere, TRAINING, "2.15.2")]
    assert (found[-1].name, found[-1].state) == ("secret", State.UNKNOWN)
