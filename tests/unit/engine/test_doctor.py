"""`ddpipe doctor`: each check is ok, unknown from here, or fails with its fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import s3_server
from engine_commands import ddpipe
from kfp_server import Server

from ddpipe.engine.client import Endpoint, connect
from ddpipe.engine.doctor import Check, Plan, State, examine
from ddpipe.engine.package import read_package
from ddpipe.errors import ClusterUnreachable, EngineError
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.pipelines.compile import COMPILED

PYTORCHJOBS, JOBS = "/apis/kubeflow.org/v1", "/apis/batch/v1"
TRAINING = read_package(COMPILED / "ddpipe-training.yaml")


@dataclass
class Kubernetes:
    """What the checks ask of a cluster.

    Attributes:
        denied: What the steps' account may not, as "verb resource".
        images: On the node.
        secrets: Keys by name.
        served: The kind of each API group.
        refusal: Of every request.
        asked: Users whose rights were asked for.
    """

    denied: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    served: Mapping[str, str] = field(default_factory=lambda: {PYTORCHJOBS: "pytorchjobs", JOBS: "jobs"})
    refusal: Exception | None = None
    asked: set[str] = field(default_factory=set)

    def get(self, path: str, _query: object = None) -> dict[str, Any]:
        if self.refusal and path != "/version":
            raise self.refusal
        if path in self.served:
            return {"resources": [{"name": self.served[path]}]}
        if path.startswith("/apis/"):
            raise Refused(404, "NotFound", "no such API")
        if path == "/api/v1/nodes":
            unnamed = {"names": None, "sizeBytes": 7}  # as a kubelet reports an image whose tag was rebuilt
            return {
                "items": [{"status": {"images": [unnamed, {"names": list(self.images)}]}}, {"status": {}}]
            }
        name = path.rpartition("/")[2]
        if "/secrets/" in path and name not in self.secrets:
            raise Refused(404, "NotFound", f"secrets {name} not found")
        return {"data": dict.fromkeys(self.secrets.get(name, ()), "")}

    def create(self, _path: str, body: Mapping[str, Any], _query: object = None) -> dict[str, Any]:
        if self.refusal:
            raise self.refusal
        what = body["spec"]["resourceAttributes"]
        self.asked.add(body["spec"]["user"])
        return {"status": {"allowed": f"{what['verb']} {what['resource']}" not in self.denied}}


def checks(server: Server, cluster: object, account: str = "", namespace: str = "") -> dict[str, Check]:
    """By name; of several images the last."""
    plan = Plan(package=TRAINING, least="2.15.2", account=account)
    reached = Endpoint(url=server.url, namespace=namespace)
    return {one.name: one for one in examine(lambda: connect(reached), lambda: cluster, plan)}  # type: ignore[arg-type,return-value]


def test_unknown_checks_are_no_failure(server: Server) -> None:
    result = ddpipe("doctor")
    assert result.exit_code == 0
    lines = [line.split()[:2] for line in result.stdout.splitlines()]
    for name in ("endpoint", "login", "namespace", "version"):
        assert [name, "ok"] in lines
    for name in ("rights", "images", "secret", "store"):
        assert [name, "unknown"] in lines
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
    assert "rights" not in result.stdout


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


def test_rights_are_those_of_the_steps_account(server: Server) -> None:
    cluster = Kubernetes()
    assert checks(server, cluster)["rights"].state == State.OK
    server.namespaces = ("team-a",)
    checks(server, cluster, namespace="team-a")
    checks(server, cluster, namespace="team-a", account="mine")
    assert cluster.asked == {
        "system:serviceaccount:kubeflow:pipeline-runner",
        "system:serviceaccount:team-a:default-editor",
        "system:serviceaccount:team-a:mine",
    }


def test_missing_rights_are_named_with_the_file_that_grants_them(server: Server) -> None:
    found = checks(server, Kubernetes(denied=("create pytorchjobs", "list pods")))["rights"]
    assert found.state == State.FAIL
    assert "create pytorchjobs, list pods" in found.seen
    assert "images/rbac.yaml" in found.fix


def test_one_kind_of_job_that_the_account_may_launch_is_enough(server: Server) -> None:
    found = checks(server, Kubernetes(denied=("create pytorchjobs",)))["rights"]
    assert (found.state, found.seen.endswith("may launch Job")) == (State.OK, True)


def test_indexed_jobs_need_the_right_to_create_services(server: Server) -> None:
    found = checks(server, Kubernetes(denied=("create services",), served={JOBS: "jobs"}))["rights"]
    assert (found.state, "create services" in found.seen) == (State.FAIL, True)


def test_cluster_without_any_kind_of_job_cannot_be_judged(server: Server) -> None:
    found = checks(server, Kubernetes(served={}))["rights"]
    assert (found.state, "PyTorchJob" in found.seen) == (State.UNKNOWN, True)


def test_image_that_no_node_has_may_still_be_pulled(server: Server) -> None:
    trainer = str(next(item.default for item in TRAINING.parameters if item.name == "cluster_image"))
    assert checks(server, Kubernetes(images=(trainer,)))["image"].state == State.OK
    found = checks(server, Kubernetes())["image"]
    assert (found.state, "make images" in found.fix) == (State.UNKNOWN, True)


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
    found = checks(server, Kubernetes(refusal=refusal))
    assert {found[name].state for name in ("rights", "image", "secret")} == {State.UNKNOWN}


def test_cluster_that_is_not_there_is_unknown(server: Server) -> None:
    def nowhere() -> Any:
        raise ClusterUnreachable(what="", which="", seen="no kubeconfig", do="")

    plan = Plan(package=TRAINING, least="2.15.2")
    found = {one.name: one for one in examine(lambda: connect(Endpoint(url=server.url)), nowhere, plan)}
    assert found["rights"].state == State.UNKNOWN


def test_store_is_tried_where_its_address_is_known(server: Server, s3: s3_server.Server) -> None:
    assert checks(server, Kubernetes())["store"].state == State.FAIL  # no such bucket
    s3.client.make_bucket("mlpipeline")
    assert checks(server, Kubernetes())["store"].state == State.OK
