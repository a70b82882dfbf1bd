"""Many launchers at once in one namespace while the API server is flaky: each is right, nothing is left.

    pytest tests/cluster/test_soak.py                         a few launchers and real pods
    DDPIPE_SOAK=200 pytest tests/cluster/test_soak.py         on nodes that simulate pods (KWOK)

The launchers are threads of this process: 200 processes take 15 GB.
"""

from __future__ import annotations

import io
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from place import IMAGE, Place, a_place, eventually

from ddpipe.errors import LaunchError, ReplicaFailed
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.kube.api import ApiServer, connect
from ddpipe.kube.retrying import with_retries
from ddpipe.launching.launcher import launch

T = TypeVar("T")
LAUNCHERS = int(os.environ.get("DDPIPE_SOAK", "4"))
FAILING = 4
"""Every so many-th job fails."""

PATIENCE = 120 + 5 * LAUNCHERS
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 + 8 * LAUNCHERS)]


@dataclass(frozen=True)
class Ended:
    """How one launch ended: its error if it failed, and what it printed."""

    number: int
    error: LaunchError | None
    text: str

    @property
    def is_right(self) -> bool:
        """Whether it ended as its job did, with the cause."""
        if self.number % FAILING:
            return self.error is None
        return isinstance(self.error, ReplicaFailed) and "exit code 3" in self.error.seen


@pytest.fixture
def simulated(admin: ApiServer) -> dict[str, Any]:
    """The options with which pods are simulated; none if the cluster simulates no nodes."""
    if not admin.get("/api/v1/nodes", {"labelSelector": "lab/sim=true"})["items"]:
        return {}
    return {"node_selector": {"lab/sim": "true"}, "tolerations": [{"key": "lab/sim", "operator": "Exists"}]}


@pytest.fixture
def many_files() -> Iterator[None]:
    """Each launcher has three watches open, each of them on both sides of the proxy."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_many_launchers_on_a_flaky_server_are_all_right(admin: ApiServer, simulated: dict[str, Any]) -> None:
    """Each of the jobs exists exactly once, and the first error is reported with its cause."""
    with (
        tempfile.TemporaryDirectory() as folder,
        a_place(admin, Path(folder), level="baseline") as place,
        ThreadPoolExecutor(LAUNCHERS) as pool,
    ):
        running = [pool.submit(_launched, place, a_job(place, n, simulated)) for n in range(LAUNCHERS)]
        created = eventually(
            lambda: len(_patiently(place.jobs)), lambda count: 2 * count >= LAUNCHERS, PATIENCE, pause=1
        )
        assert 2 * created >= LAUNCHERS
        with place.proxy.flaky(0.3):
            place.proxy.drop_streams()
            time.sleep(3)
        with place.proxy.refusing():  # a server that is restarted
            time.sleep(3)
        ended = [one.result(PATIENCE) for one in running]
        assert not [f"{one.number}: {one.error}\n{one.text}" for one in ended if not one.is_right]
        assert _patiently(place.jobs_ever) == LAUNCHERS
        for left in (place.jobs, place.pods):
            assert not eventually(partial(_patiently, left), lambda found: not found, 60, pause=1)


def a_job(place: Place, number: int, simulated: dict[str, Any]) -> TrainingJob:
    """A small job; some of them fail."""
    code = 0 if number % FAILING else 3
    job = TrainingJob(
        owner=Owner(pipeline="soak", run_id=f"r{number}"),
        namespace=place.namespace,
        backend=place.backend,
        image=IMAGE,
        nodes=2,
        command=("sh", "-c", f"sleep 10; exit {code}"),
        cpu="50m",
        memory="64Mi",
        shared_memory="16Mi",
    )
    if not simulated:
        return job
    return replace(job, **simulated, annotations={"lab/seconds": "20s", "lab/exit": str(code)})


def _patiently(look: Callable[[], T]) -> T:
    """What the test itself sees of a server that so many launchers keep busy."""
    return with_retries(look, PATIENCE)


def _launched(place: Place, job: TrainingJob) -> Ended:
    out, number = io.StringIO(), int(job.owner.run_id[1:])
    try:
        launch(job, connect(str(place.kubeconfig)), exists=lambda _: True, out=out)
    except LaunchError as error:
        return Ended(number, error, out.getvalue())
    return Ended(number, None, out.getvalue())
