"""SIGKILL at a random moment, then run again: exactly one job, every time."""

from __future__ import annotations

import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from place import a_place
from step import launch

from ddpipe.kube.api import ApiServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TIMES = 20
# From the start of the process to after the job's end.
LONGEST = 9.0


def test_a_launcher_killed_anywhere_owns_exactly_one_job(
    admin: ApiServer, request: pytest.FixtureRequest
) -> None:
    moments = [random.uniform(0, LONGEST) for _ in range(TIMES)]
    with ThreadPoolExecutor(request.config.getoption("--side-by-side")) as pool:
        for moment, seen in zip(
            moments, pool.map(lambda moment: _kill_and_rerun(admin, moment), moments), strict=True
        ):
            assert seen == (0, 1, 0), f"killed after {moment:.2f} s: exit code, jobs ever, jobs left = {seen}"


def _kill_and_rerun(admin: ApiServer, moment: float) -> tuple[int, int, int]:
    """Exit code of the second launcher, jobs ever, jobs left; one that was done needs no second."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder)) as place:
        step = launch(place, "sleep 2")
        time.sleep(moment)
        first = step.kill()
        code = first.code if first.code >= 0 else launch(place, "sleep 2").end().code
        return code, place.jobs_ever(), len(place.jobs())
