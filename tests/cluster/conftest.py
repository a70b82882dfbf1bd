"""What the tests on a real cluster share: the cluster, or why there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from place import IMAGE, missing_image

from ddpipe.errors import DdpipeError
from ddpipe.launch.cluster import ApiError, ApiServer, connect


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--side-by-side", type=int, default=4, help="How many faults happen at once.")
    parser.addoption("--messages", action="store_true", help="Print what people are told, fault by fault.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Every message of the matrix, to be judged as prose."""
    if not config.getoption("--messages"):
        return
    terminalreporter.section("what people are told")
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if report.when == "call":
                    terminalreporter.write_line(f"\n{name}\n    " + text.replace("\n", "\n    "))


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
    if missing := missing_image(cluster, IMAGE):
        pytest.skip(missing)
    return cluster
