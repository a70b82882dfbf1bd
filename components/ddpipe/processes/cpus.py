"""How many CPUs this process may really use: a container's limit is not what the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cpus(cgroup: Path = CGROUP) -> int:
    """At least 1: the CPUs that the scheduler and the container's quota both grant, rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """CPUs by the cgroup's quota, of version 2 or 1; infinite without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    return math.inf if quota in {"max", "-1"} else int(quota) / int(period)
