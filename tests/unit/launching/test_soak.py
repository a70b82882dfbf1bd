"""Many launchers at once while the API server is flaky; on a real one: tests/cluster/test_soak.py."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

from fake_api import FakeApiServer
from launch_samples import JOBS, PODS, a_job, a_pod, a_server, an_object, ended

from ddpipe.errors import LaunchError, ReplicaFailed
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.launching.launcher import launch

LAUNCHERS = 24


def test_many_launchers_on_a_flaky_server_are_all_right() -> None:
    """Every fourth job fails; a third of all requests meets an error while the jobs run."""
    jobs = [a_job(owner=Owner(pipeline="soak", run_id=f"r{n}")) for n in range(LAUNCHERS)]
    server, dice = a_server(), random.Random(1)
    server.created = lambda found: operate(server, jobs, found)
    busy, away = Refused(429, "TooManyRequests", "try again"), Unanswered("the connection was cut")
    server.fail(lambda _: len(server.asked) > 5 * LAUNCHERS and dice.random() < 0.2, busy, times=200)
    server.fail(lambda _: len(server.asked) > 8 * LAUNCHERS and dice.random() < 0.2, away, times=200)
    with ThreadPoolExecutor(LAUNCHERS) as pool:
        outcomes = list(pool.map(lambda job: outcome(server, job), jobs))
    wrong = [f"{n}: {seen!r}" for n, seen in enumerate(outcomes) if not is_right(n, seen)]
    created = [one for one in server.asked if one.method == "POST" and one.path == JOBS and not one.query]
    assert not wrong
    assert LAUNCHERS <= len(created) <= 2 * LAUNCHERS  # some were answered with an error
    assert server.get(JOBS)["items"] == []
    assert server.get(PODS)["items"] == []


def fails(number: int) -> bool:
    return number % 4 == 0


def operate(server: FakeApiServer, jobs: list[TrainingJob], found: dict[str, Any]) -> None:
    """Run a new job's pods, and end them a moment later."""
    if "annotations" not in found["metadata"]:
        return
    number = next(n for n, job in enumerate(jobs) if job.name == found["metadata"]["name"])
    job, uid = jobs[number], found["metadata"]["uid"]
    code = 3 if fails(number) else 0

    def show(phase: str, condition: str, state: dict[str, Any]) -> None:
        for rank in ("worker-0", "worker-1"):
            mine = {"uid": f"{uid}-{rank}", "ownerReferences": [{"uid": uid}]}
            server.put(PODS, a_pod(job, rank, phase, state=state, metadata=mine))
            server.logs.setdefault(f"{PODS}/{job.name}-{rank}/log", [[]])
        server.put(JOBS, {**found, "status": an_object(job, condition)["status"]})

    show("Running", "Running", {"running": {}})
    ending = ("Failed", "Failed") if code else ("Succeeded", "Succeeded")
    Timer(0.5, lambda: show(*ending, ended(code))).start()


def outcome(server: FakeApiServer, job: TrainingJob) -> LaunchError | None:
    try:
        launch(job, server, exists=lambda _: True, out=io.StringIO())
    except LaunchError as error:
        return error
    return None


def is_right(number: int, seen: LaunchError | None) -> bool:
    if fails(number):
        return isinstance(seen, ReplicaFailed) and "exit code 3" in seen.seen
    return seen is None
