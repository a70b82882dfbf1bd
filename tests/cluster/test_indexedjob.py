"""An Indexed Job and its service: neither remains alone if a launcher dies between creating the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from place import Place, a_place, eventually
from proxy import Request
from step import Step, launch

from ddpipe.kube.api import ApiServer
from ddpipe.kube.resources import JOBS, SERVICES

pytestmark = pytest.mark.cluster
MEET = """
until python -c 'import os, socket; socket.gethostbyname(os.environ["MASTER_ADDR"])' 2>&-; do sleep 0.2; done
echo found rank 0
"""


@pytest.fixture
def place(admin: ApiServer, tmp_path: Path) -> Iterator[Place]:
    with a_place(admin, tmp_path) as place:
        yield place


def creates_service(request: Request) -> bool:
    return request.method == "POST" and "/services" in request.path and "dryRun" not in request.path


def between_the_creates(place: Place, *, answered: bool) -> Step:
    """A launcher whose job is there; its service too, if that create is answered."""
    hold = place.proxy.hold(creates_service, answered=answered)
    step = launch(place, MEET, "--backend", "indexedjob")
    assert hold.reached.wait(60), step.text
    hold.drop = True
    return step


def names(place: Place) -> tuple[list[str], list[str]]:
    """Of the jobs and the services that are there."""
    jobs, services = (
        [item["metadata"]["name"] for item in place.admin.get(kind.path(place.namespace))["items"]]
        for kind in (JOBS, SERVICES)
    )
    return jobs, services


def gone(place: Place) -> bool:
    return eventually(lambda: names(place), lambda found: found == ([], [])) == ([], [])


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_launcher_killed_at_the_service_is_taken_over_by_the_next(place: Place, *, answered: bool) -> None:
    between_the_creates(place, answered=answered).kill()
    (job,), services = names(place)
    assert services == ([job] if answered else [])
    ended = launch(place, MEET, "--backend", "indexedjob").end()
    assert ended.code == 0, ended.text
    assert f"adopted Job {place.namespace}/{job}" in ended.text
    assert "[worker-1] found rank 0" in ended.text
    assert gone(place), names(place)


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_launcher_stopped_at_the_service_leaves_neither(place: Place, *, answered: bool) -> None:
    between_the_creates(place, answered=answered).terminate()
    assert gone(place), names(place)
