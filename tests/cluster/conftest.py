"""What the tests on a real cluster share: the cluster, or why there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ddpipe.errors import DdpipeError
from ddpipe.launch.cluster import ApiError, ApiServer, connect


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--side-by-side", type=int, default=4, help="How many faults happen at once.")


@pytest.fixture(scope="session")
def admin() -> ApiServer:
    """The cluster of KUBECONFIG, with the rights of whoever runs the tests."""
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
    return cluster
