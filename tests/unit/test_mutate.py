"""tools/mutate.py knows the tests of each package, and what can be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutate import OTHERS, WITH_PROCESSES, Changes, node_of

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", sorted(OTHERS.keys() | WITH_PROCESSES.keys()))
def test_tests_of_a_mutated_package_exist(folder: str) -> None:
    others = [f"unit/{name}" for name in [folder, *OTHERS.get(folder, "").split()]]
    assert [name for name in others if not (TESTS / name).exists()] == []
    assert [name for name in WITH_PROCESSES.get(folder, "").split() if not (TESTS / name).exists()] == []


def test_one_thing_at_a_time_is_changed() -> None:
    source = b'''
def answer(words: list[str], most: int = 3) -> bool:
    """At most 3."""
    log.info("at most", most)
    found = shown(words, what="at most")
    return len(found) < most
'''
    changed = {
        change.of(source).decode().splitlines()[number]
        for change in Changes("a.py", source).found
        for number in (1, 4, 5)
    }
    assert changed - set(source.decode().splitlines()) == {
        "def answer(words: list[str], most: int = (3 + 1)) -> bool:",
        '    found = shown(None, what="at most")',
        "    return None",
        "    return len(found) <= most",
        "    return len(None) < most",
    }


def test_declarations_are_not_changed() -> None:
    source = b"""
T = TypeVar("T")
@dataclass(frozen=True)
class Given:
    most: int = 3
"""
    assert [change.new for change in Changes("a.py", source).found] == ["(3 + 1)"]


@pytest.mark.parametrize(
    ("context", "node"),
    [
        ("tests.unit.data.test_npy.test_header", "tests/unit/data/test_npy.py::test_header"),
        ("test_npy.test_header", "tests/unit/data/test_npy.py::test_header"),
        ("hypothesis.internal.conjecture.engine.ConjectureRunner.test_function", ""),
        ("", ""),
    ],
)
def test_a_line_is_run_by_tests_of_the_file_alone(context: str, node: str) -> None:
    """pytest ends with an error for a test that does not exist, as if it had noticed something."""
    assert node_of(context, "tests/unit/data/test_npy.py") == node
