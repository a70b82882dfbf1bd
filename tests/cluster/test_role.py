"""The Role of images/rbac.yaml is the least: each verb is taken away in turn, and something is lost."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from faults import (
    BRIEF,
    JOB_NAME,
    LONG,
    SOON,
    in_a_pod,
    limit_pods,
    running,
)
from place import ACCOUNT, RBAC, Place, a_place, delete, eventually
from step import Ended, Step, launch

from ddpipe.jobs.pytorchjob import RESOURCE
from ddpipe.jobs.trainjob import RESOURCE as TRAINJOBS
from ddpipe.kube.api import ApiServer

pytestmark = pytest.mark.cluster

Verb = tuple[str, str, str]
"""API group, resource and verb."""


@dataclass(frozen=True)
class Loss:
    """What a right is good for.

    Attributes:
        act: Does something for which it is good.
        better: Exit code and words of it with the whole Role.
        worse: Without this right.
    """

    act: Callable[[Place], Ended]
    better: tuple[int, str]
    worse: tuple[int, str]


# A rejection for quota may pass: it counts after six times `hopeless`, that is 18 seconds. Until then, and
# while jobs of other tests have the CPUs of the node, pods must be allowed to wait.
LATE = ("--deadlines", "scheduled=60", "--deadlines", "running=8", *SOON)


def a_job(place: Place) -> Ended:
    return launch(place, BRIEF).end()


def an_indexed_job(place: Place) -> Ended:
    return launch(place, BRIEF, "--backend", "indexedjob").end()


def a_trainjob(place: Place) -> Ended:
    return launch(place, BRIEF, "--backend", "trainjob").end()


def naming(resource: str) -> Callable[[Place], Ended]:
    options = {
        "configmaps": ("--volumes", "config:nope:/config"),
        "serviceaccounts": ("--service-account", "nope"),
        "persistentvolumeclaims": ("--volumes", "claim:nope:/data"),
    }
    return lambda place: launch(place, BRIEF, *options[resource], *LATE).end()


def beyond_quota(place: Place) -> Ended:
    """Pods that run long: the quota of the first would soon be free for the second."""
    limit_pods(place, 1)
    return launch(place, LONG, *LATE).end()


def refused_later(place: Place) -> Ended:
    """A pod that is to be replaced, and must not be: an event reports it long after pods were listed."""
    step = running(place, "trap 'exit 143' TERM; sleep 300 & wait $!", "--restart", "ExitCode", *LATE)
    limit_pods(place, 1)
    delete(place.admin, f"/api/v1/namespaces/{place.namespace}/pods/{JOB_NAME}-worker-1")
    return step.end()


def owned(place: Place) -> Ended:
    """A job from a pod: it belongs to the pod."""
    step = running(place, LONG, **in_a_pod(place))
    owners = place.admin.get(place.jobs_path(JOB_NAME))["metadata"].get("ownerReferences", [])
    ended = step.terminate(grace=5)
    return Ended(ended.code, ended.text + f"owners: {[owner['kind'] for owner in owners]}", ended.seconds)


def left_by(version: str, kind: str) -> Callable[[Place], Ended]:
    """A listing of a job whose run, of this kind, is no longer there."""

    def act(place: Place) -> Ended:
        running(place).kill()
        owner = {"apiVersion": version, "kind": kind, "name": "run", "uid": str(uuid.uuid4())}
        # The garbage collector takes a job whose owner is gone: a finalizer keeps it for a look.
        change = {"metadata": {"ownerReferences": [owner], "finalizers": ["ddpipe.dev/test"]}}
        place.patch(place.jobs_path(JOB_NAME), change)
        try:
            return Step(place, ["jobs", "ls"], {}).end()
        finally:
            place.patch(place.jobs_path(JOB_NAME), {"metadata": {"finalizers": None}})

    return act


def refused(verb: str, resource: str, act: Callable[[Place], Ended] = a_job) -> Loss:
    """A launch says at once that it needs this, and how to give it."""
    words = rf"this account may not {verb} {resource} in .*resources: \[\"{resource}\"\], verbs: \[{verb}\]"
    return Loss(act, (0, "succeeded"), (44, words))


LOSSES: dict[Verb, Loss] = {
    **{
        (RESOURCE.group, RESOURCE.plural, verb): refused(verb, RESOURCE.plural)
        for verb in ("create", "get", "list", "watch", "delete")
    },
    **{
        ("batch", "jobs", verb): refused(verb, "jobs", an_indexed_job)
        for verb in ("create", "get", "list", "watch", "delete")
    },
    **{
        (TRAINJOBS.group, TRAINJOBS.plural, verb): refused(verb, TRAINJOBS.plural, a_trainjob)
        for verb in ("create", "get", "list", "watch", "delete")
    },
    **{("", "services", verb): refused(verb, "services", an_indexed_job) for verb in ("create", "get")},
    ("", "pods", "list"): refused("list", "pods"),
    ("", "pods", "watch"): refused("watch", "pods"),
    ("", "pods/log", "get"): refused("get", "pods/log"),
    ("", "pods", "get"): Loss(owned, (143, r"owners: \['Pod'\]"), (143, r"owners: \[\]")),
    ("", "events", "list"): Loss(refused_later, (52, "exceeded quota"), (46, "1 of 2 pods exist")),
    ("", "events", "watch"): Loss(refused_later, (52, "exceeded quota"), (46, "1 of 2 pods exist")),
    ("", "resourcequotas", "list"): Loss(beyond_quota, (44, "leaves 1 of pods"), (52, "exceeded quota")),
    ("", "persistentvolumeclaims", "get"): Loss(
        naming("persistentvolumeclaims"), (44, "nope does not exist"), (52, '"nope" not found')
    ),
    ("", "configmaps", "get"): Loss(
        naming("configmaps"), (44, "nope does not exist"), (52, '"nope" not found')
    ),
    ("", "serviceaccounts", "get"): Loss(
        naming("serviceaccounts"), (44, "nope does not exist"), (52, 'serviceaccount "nope" not found')
    ),
    ("argoproj.io", "workflows", "get"): Loss(
        left_by("argoproj.io/v1alpha1", "Workflow"), (0, r"\(ended\)"), (0, r"\(state unknown\)")
    ),
}
OF_ARGO = {("argoproj.io", "workflowtaskresults", verb) for verb in ("create", "patch")}
"""What Argo's own container in a step's pod does under the same account."""

OF_KATIB = {("kubeflow.org", "experiments", verb) for verb in ("create", "get", "list", "watch", "delete")}
"""For searches on clusters with Katib: tests/cluster/test_katib.py."""

OF_METRICS = {("metrics.k8s.io", "pods", "get")}
"""For clusters with a metrics server: tests/unit/launching/test_silence.py."""

SAVES_REQUESTS = {("argoproj.io", "workflows", "list")}
"""What only changes the number of requests, which tests/unit/launching/test_ownership.py counts."""


def granted() -> set[Verb]:
    role, _of_notebooks = (part for part in yaml.safe_load_all(RBAC.read_text()) if part["kind"] == "Role")
    return {
        (group, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_role_grants_nothing_that_is_not_looked_at_here() -> None:
    assert granted() == LOSSES.keys() | OF_ARGO | OF_KATIB | OF_METRICS | SAVES_REQUESTS


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, admin: ApiServer
) -> Iterator[dict[tuple[Verb, bool], Future[Ended]]]:
    """How it ends with the whole Role and without each of the chosen rights, several at once."""
    parameters = [getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items]
    chosen = [(given["right"], given["has"]) for given in parameters if "right" in given]
    with ThreadPoolExecutor(request.config.getoption("--side-by-side")) as pool:
        yield {one: pool.submit(_act, admin, *one) for one in chosen}


def _act(admin: ApiServer, right: Verb, has: bool) -> Ended:
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder)) as place:
        place.forks = True
        if not has:
            rules = [
                {"apiGroups": [group], "resources": [name], "verbs": [verb]}
                for group, name, verb in sorted(granted() - {right})
            ]
            role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}/roles/{ACCOUNT}"
            place.patch(role, {"rules": rules})
            assert not eventually(lambda: place.may(*right), lambda may: not may)
        return LOSSES[right].act(place)


# The fault matrix shows that a job runs with the whole Role.
CASES = [
    (right, has)
    for right, loss in LOSSES.items()
    for has in (True, False)
    if not (has and loss.act in {a_job, an_indexed_job, a_trainjob})
]


@pytest.mark.parametrize(
    ("right", "has"), CASES, ids=[f"{'with' if has else 'without'} {' '.join(right)}" for right, has in CASES]
)
def test_a_right_is_good_for_something(
    right: Verb,
    has: bool,
    ends: dict[tuple[Verb, bool], Future[Ended]],
) -> None:
    ended, loss = ends[right, has].result(), LOSSES[right]
    code, words = loss.better if has else loss.worse
    assert ended.code == code, ended.text
    assert re.search(words, ended.text, re.DOTALL), ended.text
    assert "Traceback" not in ended.text
