"""Which rank was killed, as torchrun's report has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchrun_samples import report

from ddpipe.processes.signals import first_killed


def test_of_killed_ranks_the_first_is_reported() -> None:
    assert first_killed(report({0: -9, 1: -9, 2: -15}, first=1)) == (1, "SIGKILL")


@pytest.mark.parametrize("first", [0, 1])
def test_rank_that_reported_an_error_was_not_killed(tmp_path: Path, first: int) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": {"message": "lost contact", "extraInfo": {"timestamp": 1}}}))
    assert first_killed(report({0: -6, 1: -9}, first=first, files={0: str(path)})) == (1, "SIGKILL")


def test_what_torchrun_itself_ended_or_ended_itself_was_not_killed() -> None:
    assert first_killed(report({0: 1, 1: -15}, first=0)) is None
    assert first_killed("no report at all") is None


def test_signal_without_a_name_has_its_number() -> None:
    assert first_killed(report({3: -63}, first=3)) == (3, "signal 63")
