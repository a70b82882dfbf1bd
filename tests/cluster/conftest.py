"""What the tests on a real cluster share: the cluster, or why there is none."""

from __future__ import annotations

import base64
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from matrix import page, table
from place import IMAGE, STORE_SECRET, Place, a_place, missing_image
from workflows import SMALL, Ran, Submit, workflow_of, workflows_of

from ddpipe.errors import DdpipeError
from ddpipe.kube.api import ApiError, ApiServer, connect
from ddpipe.storage import open_store

_STORE = {
    "S3_ENDPOINT": "LAB_S3_ENDPOINT",
    "POD_S3_ENDPOINT": "LAB_S3_ENDPOINT_OF_PODS",
    "AWS_ACCESS_KEY_ID": "LAB_S3_ACCESS_KEY",
    "AWS_SECRET_ACCESS_KEY": "LAB_S3_SECRET_KEY",
    "S3_BUCKET": "LAB_S3_BUCKET",
}

_LONGEST = (
    *("test_faults", "test_workflow", "test_elastic", "test_workflow_killed", "test_workflow_data"),
    *("test_training", "test_killed_anywhere", "test_scaling", "test_deploy", "test_notebook_launch"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--side-by-side", type=int, default=8, help="How many faults happen at once.")
    parser.addoption("--messages", action="store_true", help="Print every message, fault by fault.")
    parser.addoption("--matrix", type=Path, help="File to write the matrix of faults to, as a table.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: processes that share the files then end at about the same time."""
    items.sort(
        key=lambda item: _LONGEST.index(item.path.stem) if item.path.stem in _LONGEST else len(_LONGEST)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The matrix of faults as one table, and with --messages every message, to be read as prose."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport)
    ]
    if matrix := table(reports):
        terminalreporter.section("the matrix of faults")
        terminalreporter.write(matrix)
        if path := config.getoption("--matrix"):
            path.write_text(page(reports, path.read_text() if path.exists() else ""))
    if config.getoption("--messages"):
        terminalreporter.section("messages")
        for report in reports:
            for name, text in report.user_properties if report.when == "call" else ():
                terminalreporter.write_line(f"\n{name}\n    " + str(text).replace("\n", "\n    "))


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caller's: it says where the cluster, its store and its engine are."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(autouse=True)
def _own_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own; home and settings stay the caller's."""
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def admin() -> ApiServer:
    """The cluster of KUBECONFIG, with the rights of the user who runs the tests."""
    if "KUBECONFIG" not in os.environ:
        pytest.skip("no cluster: set KUBECONFIG")
    try:
        cluster = connect()
        cluster.get("/version")
        kinds = {item["name"] for item in cluster.get("/apis/kubeflow.org/v1")["resources"]}
    except (ApiError, DdpipeError) as error:
        pytest.skip(f"the cluster of KUBECONFIG lacks something: {error}")
    if "pytorchjobs" not in kinds:
        pytest.skip("the cluster of KUBECONFIG has no PyTorchJobs: install the Training Operator")
    if missing := missing_image(cluster, IMAGE):
        pytest.skip(missing)
    return cluster


@pytest.fixture(scope="module")
def root(admin: ApiServer) -> Iterator[str]:
    """A folder of a module's own in the bucket of Kubeflow's MinIO, removed afterwards."""
    if "S3_ENDPOINT" not in os.environ:
        pytest.skip("no object store: set S3_ENDPOINT to the cluster's MinIO as this machine reaches it")
    try:
        data = admin.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")["data"]
    except ApiError as error:
        pytest.skip(f"the cluster of KUBECONFIG has no secret kubeflow/{STORE_SECRET}: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", base64.b64decode(data["accesskey"]).decode())
        patch.setenv("AWS_SECRET_ACCESS_KEY", base64.b64decode(data["secretkey"]).decode())
        uri = f"s3://mlpipeline/ddpipe-test-{uuid.uuid4().hex[:8]}"
        try:
            yield uri
        finally:
            store = open_store(uri)
            for item in list(store.list()):
                store.delete(item.key)


@pytest.fixture(scope="module")
def s3_environment() -> dict[str, str]:
    """Where the object store is, for this machine and for pods, and its keys; see test_training.py."""
    found = {name: os.environ.get(name) or os.environ.get(other, "") for name, other in _STORE.items()}
    missing = [name for name, value in found.items() if not value]
    if missing:
        pytest.skip(f"no object store: set {', '.join(missing)}")
    return found


@pytest.fixture(scope="module")
def argo(admin: ApiServer) -> ApiServer:
    try:
        kinds = {item["name"] for item in admin.get("/apis/argoproj.io/v1alpha1")["resources"]}
    except ApiError as error:
        pytest.skip(f"the cluster of KUBECONFIG has no Argo: {error}")
    if "workflows" not in kinds:
        pytest.skip("the cluster of KUBECONFIG has no Argo Workflows")
    return admin


@pytest.fixture(scope="module")
def place(argo: ApiServer, root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One namespace for all of these tests, with what Kubeflow puts into a user's."""
    with a_place(argo, tmp_path_factory.mktemp("place")) as place:
        secret = argo.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")
        place.create("/api/v1/secrets", {**secret, "metadata": {"name": STORE_SECRET}})
        yield place


@pytest.fixture(scope="module")
def submit(place: Place, root: str) -> Submit:
    def submitted(**parameters: object) -> Ran:
        body = workflow_of({**SMALL, "runs": f"{root}/runs", "store": f"{root}/store", **parameters})
        made = place.admin.create(workflows_of(place), body)
        return Ran(place, made["metadata"]["name"], f"{root}/runs")

    return submitted
