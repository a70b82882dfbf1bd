"""A backend is a value: one file with all there is to know of a kind of job, and one line that names it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApiServer
from launch_samples import PODS, a_job, ended

from ddpipe import jobs as backends
from ddpipe.errors import LaunchError, NotInstalled, PreflightFailed, ReplicaFailed
from ddpipe.jobs.backend import Backend, Controller, all_backends
from ddpipe.jobs.experiment import RESOURCE as EXPERIMENTS
from ddpipe.jobs.job import TrainingJob, manifest_of
from ddpipe.jobs.pods import template
from ddpipe.jobs.replicas import Read, replica_of
from ddpipe.jobs.status import JobStatus, Phase, Stage, condition
from ddpipe.kube import cluster, resources
from ddpipe.kube.cluster import Right
from ddpipe.kube.resources import SECRETS, Object, Resource
from ddpipe.launching.launcher import launch
from ddpipe.launching.ownership import list_jobs

ROOT = Path(__file__).parents[3]
RESOURCE = Resource(group="sports.example", version="v2", plural="relays", kind="Relay")
CONTAINER = "runner"

# Launching works without these rights, but some messages come later or say less.
HELPFUL = (
    Right(resources.PODS, ("get",)),  # the launcher's own: is it evicted, or was the run terminated?
    Right(resources.EVENTS, ("list", "watch")),  # why pods are rejected, or cannot mount
    Right(resources.METRICS, ("get",)),  # what a silent pod uses: does it hang, or compute?
    Right(resources.QUOTAS, ("list",)),  # insufficient quota shows before anything is created
    Right(resources.CLAIMS, ("get",)),  # so does a missing object
    Right(resources.CONFIGS, ("get",)),
    Right(resources.ACCOUNTS, ("get",)),
    Right(resources.WORKFLOWS, ("get", "list")),  # whether the runs of jobs that were left behind are over
    Right(resources.JOBS, ("get",)),
)


def manifest(job: TrainingJob, _schema: Object | None = None) -> dict[str, Any]:
    return manifest_of(RESOURCE, job, {"team": template(job, CONTAINER)})


def phase(found: Object) -> Phase:
    return Phase.FAILED if condition(found, "Fell") else Phase.ACTIVE


def owns(found: Object, pod: Object) -> bool:
    return bool(pod["metadata"]["team"] == found["metadata"]["name"])


def status(_job: TrainingJob, found: Object, pods: Sequence[Object], read: Read = replica_of) -> JobStatus:
    own = [read(pod, pod["metadata"]["leg"], CONTAINER) for pod in pods if owns(found, pod)]
    return JobStatus(phase=phase(found), stage=Stage.FINISHED, message="it fell", replicas=tuple(own))


class Relays:
    """Stands for a module of jobs/."""

    BACKEND = Backend(
        resource=RESOURCE,
        controller=Controller(name="Referee", find="kubectl get referees", webhook="", install="Hire one"),
        manifest=manifest,
        pod=lambda job: template(job, CONTAINER),
        phase=phase,
        status=status,
        owns=owns,
    )


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "relay", "relays")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "relays", Relays)  # type: ignore[arg-type]
    # The names that the option allows were taken from the table when the option was declared.
    monkeypatch.setattr(TrainingJob, "validated", lambda job: job)


def a_server() -> FakeApiServer:
    server = FakeApiServer()
    server.serve(RESOURCE, resources.PODS, resources.EVENTS)
    return server


def message(server: FakeApiServer, **options: Any) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launch(
            a_job(backend="relay", outage=0.2, **options), server, exists=lambda _: True, out=io.StringIO()
        )
    text = str(caught.value).lower()
    assert "pytorch" not in text
    assert "training operator" not in text
    return caught.value


def test_a_job_of_another_kind_fails_in_its_own_words() -> None:
    server = a_server()

    def fall(found: dict[str, Any]) -> None:
        server.put(
            RESOURCE.path("team"), {**found, "status": {"conditions": [{"type": "Fell", "status": "True"}]}}
        )
        name = f"{found['metadata']['name']}-0"
        state = {"name": CONTAINER, "restartCount": 0, "state": ended(7)}
        spec = {"nodeName": "n1", "containers": [{"name": CONTAINER}]}
        labels = found["metadata"]["labels"]
        pod = {"name": name, "labels": labels, "leg": "first", "team": found["metadata"]["name"]}
        status = {"phase": "Failed", "containerStatuses": [state]}
        server.put(PODS, {"metadata": pod, "spec": spec, "status": status})
        server.logs[f"{PODS}/{name}/log"] = [[b"2026-01-01T00:00:00Z ouch"]]

    server.created = fall
    error = message(server)
    assert isinstance(error, ReplicaFailed)
    assert error.which == f"first of Relay team/{a_job().name} (node n1)"
    assert "exit code 7" in error.seen
    assert "ouch" in error.seen


def test_what_it_needs_is_asked_for_by_its_own_names() -> None:
    server = a_server()
    server.allowed = lambda _: False
    error = message(server)
    assert isinstance(error, PreflightFailed)
    assert '{apiGroups: ["sports.example"], resources: ["relays"], verbs: [create, get,' in error.seen
    error = message(FakeApiServer())
    assert isinstance(error, NotInstalled)
    assert error.do.startswith("Hire one, or use another cluster")


def test_a_job_that_is_stopped_is_named_by_its_kind() -> None:
    server = a_server()
    error = message(server, deadlines={"finished": 0.2})
    assert error.which == f"Relay team/{a_job().name}"


def test_jobs_of_all_kinds_that_the_cluster_has_are_listed() -> None:
    server = a_server()
    server.put(RESOURCE.path("team"), manifest(a_job()))
    assert [(job.kind, job.path) for job in list_jobs(server, "team")] == [
        ("Relay", RESOURCE.path("team", a_job().name))
    ]


def test_nothing_else_knows_a_backend_by_its_name() -> None:
    """Outside of its file the PyTorchJob is a name in the table of backends."""
    words = re.compile("pytorch-?job|training operator", re.IGNORECASE)
    package = ROOT / "components" / "ddpipe"
    files = [path for folder in ("kube", "jobs", "launching") for path in (package / folder).glob("*.py")]
    names = {path.relative_to(package).as_posix() for path in files if words.search(path.read_text())}
    assert names == {"jobs/pytorchjob.py", "jobs/__init__.py"}


def owned_objects(backend: Backend) -> list[Resource]:
    return [owned.resource for owned in backend.owned_objects(a_job(nodes=2))]


def test_the_role_of_the_images_grants_what_is_needed_and_no_more() -> None:
    role, of_notebooks = (
        part
        for part in yaml.safe_load_all((ROOT / "images" / "rbac.yaml").read_text())
        if part["kind"] == "Role"
    )
    granted = {
        (group, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }
    declared = {
        (right.resource.group, right.name, verb)
        for backend in all_backends()
        if backend is not Relays.BACKEND
        for right in (*cluster.needed(backend.resource, *owned_objects(backend)), *HELPFUL)
        for verb in right.verbs
    }
    of_argo = {("argoproj.io", "workflowtaskresults", verb) for verb in ("create", "patch")}
    of_katib = {
        (EXPERIMENTS.group, EXPERIMENTS.plural, verb) for verb in cluster.needed(EXPERIMENTS)[0].verbs
    }
    assert granted == declared | of_argo | of_katib
    (right,) = cluster.needed(SECRETS, SECRETS)[3:]
    assert of_notebooks["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": [*right.verbs]}]
