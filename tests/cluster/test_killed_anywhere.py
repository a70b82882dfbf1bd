"""A launcher killed at a random moment: the right status, the job once, nothing left.

`python benchmarks/random_kills.py` does it a hundred times for each backend.
"""

from __future__ import annotations

import time

import pytest
from kills import drawn, series

from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import backend as backend_of
from ddpipe.kube.api import ApiServer
from ddpipe.kube.cluster import is_served

pytestmark = pytest.mark.cluster
TIMES = 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_launcher_killed_anywhere_owns_exactly_one_job(admin: ApiServer, backend: str) -> None:
    if not is_served(admin, backend_of(backend).resource):
        pytest.skip(f"this cluster has no {backend_of(backend).resource.kind}s")
    seed = time.time_ns()
    for outcome in series(admin, backend, list(drawn(seed, TIMES))):
        assert not outcome.problem, f"seed {seed}: {outcome}\n{outcome.text}"
