"""Launchers killed or stopped while they scale their job, and one that scales it as no node is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from place import Place, a_place, eventually
from proxy import Request
from step import RUNNING, Step, launch

from ddpipe.jobs.job import MANAGED
from ddpipe.kube.api import ApiServer
from ddpipe.launching.elastic import scale

pytestmark = pytest.mark.cluster

WORK = "trap 'exit 143' TERM; echo begun; sleep 15 & wait"
POINTS: dict[str, tuple[Callable[[Request], bool], bool]] = {
    "before the removal": (lambda request: request.deletes_job, False),
    "before the create": (lambda request: request.creates_job, False),
    "after the create": (lambda request: request.creates_job, True),
}
"""The request at which a launcher is caught while it scales its job, and whether the server has seen it."""


def amid_scaling(place: Place, point: str) -> Step:
    """A launcher that has come to this point."""
    step = launch(place, WORK)
    step.saw(RUNNING)
    which, answered = POINTS[point]
    hold = place.proxy.hold(which, answered=answered)
    (job,) = place.jobs()
    scale(place.admin, place.namespace, job["metadata"]["name"], 3)
    assert hold.reached.wait(60), step.text
    hold.drop = True
    return step


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("before the removal", r"(?s)adopted .*created .* \(nodes=3\).*running: 3 of 3 pods"),
        ("before the create", r"(?s)created .*running: 2 of 2 pods"),
        ("after the create", r"(?s)adopted .*running: 3 of 3 pods"),
    ],
)
def test_a_launcher_killed_amid_scaling_is_succeeded_by_the_next(
    admin: ApiServer, tmp_path: Path, point: str, words: str
) -> None:
    with a_place(admin, tmp_path) as place:
        amid_scaling(place, point).kill()
        ended = launch(place, WORK).end()
        assert ended.code == 0, ended.text
        assert re.search(words, ended.text), ended.text
        assert place.jobs() == []


@pytest.mark.parametrize("point", list(POINTS))
def test_a_launcher_stopped_during_scaling_leaves_no_job(
    admin: ApiServer, tmp_path: Path, point: str
) -> None:
    with a_place(admin, tmp_path) as place:
        amid_scaling(place, point).terminate()
        assert eventually(place.jobs, lambda jobs: not jobs) == []


def test_no_pod_waits_for_ever_for_others_that_get_no_node(admin: ApiServer, tmp_path: Path) -> None:
    """One pod more than there are nodes, and no two on the same."""
    one_each = {
        "labelSelector": {"matchLabels": {MANAGED: "ddpipe"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_each]}}}
    few = ("--min-nodes", "1", "--deadlines", "scheduled=5", "--patch", json.dumps({"spec": apart}))
    with a_place(admin, tmp_path) as place:
        nodes = len(admin.get("/api/v1/nodes")["items"])
        ended = launch(place, WORK, *few, nodes=nodes + 1).end()
        assert ended.code == 0, ended.text
        assert place.jobs() == []
    assert "not all pods got a node in time" in ended.text
    assert f"of {nodes + 1} have a node): removing" in ended.text
