"""tools/mutate.py knows the tests of each package."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutate import QUICK, WITH_PROCESSES

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", QUICK)
def test_tests_of_a_mutated_package_exist(folder: str) -> None:
    named = [f"unit/{name}" for name in QUICK[folder].split()] + WITH_PROCESSES.get(folder, "").split()
    assert [name for name in named if not (TESTS / name).exists()] == []
