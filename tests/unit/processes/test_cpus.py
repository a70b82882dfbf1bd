"""CPUs: what the container grants, not what the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpipe.processes.machine import cpus

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", HERE), ("50000 100000", 1), ("150000 100000", min(2, HERE)), ("9900000 100000", HERE)],
)
def test_quota_of_cgroup_2_counts(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cpus(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", HERE), ("100000", 1)])
def test_quota_of_cgroup_1_counts(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus(tmp_path) == expected


def test_without_a_quota_all_cpus_are_there(tmp_path: Path) -> None:
    assert cpus(tmp_path) == HERE
