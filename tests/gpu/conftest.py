"""Tests on real GPUs: `make test-gpu`. None of them has run on a GPU yet; please report their output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_runs import digits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine has too few GPUs for."""
    here = torch.cuda.device_count()
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        marker = item.get_closest_marker("gpus")
        wanted = marker.args[0] if marker else 1
        if here < wanted:
            reason = f"needs {wanted} GPU(s), and torch finds {here} on this machine"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digits dataset."""
    return digits(tmp_path_factory.mktemp("digits"))
