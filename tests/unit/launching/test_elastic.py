"""A job that continues with another number of pods: requested, lost, or never scheduled."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_api import FakeApiServer, Request
from launch_samples import EVENTS, JOBS, PODS, UID, a_job, a_pod, a_server, an_object, ended

from ddpipe.__main__ import cli
from ddpipe.commands import jobs as command
from ddpipe.errors import (
    DeadlineExceeded,
    Forbidden,
    NameTaken,
    ParameterError,
    PreflightFailed,
    ReplicaFailed,
    Unschedulable,
)
from ddpipe.jobs import trainjob
from ddpipe.jobs.job import NODES, REQUESTED_NODES, SPEC, WORKED, TrainingJob
from ddpipe.jobs.pytorchjob import BACKEND
from ddpipe.jobs.replicas import Cache, replica_of
from ddpipe.kube import resources
from ddpipe.kube.api import Refused
from ddpipe.kube.resources import Object
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.adoption import Attempt, adopt_or_create
from ddpipe.launching.elastic import Resize
from ddpipe.launching.launcher import Outcome, launch

JOB = a_job(outage=0.5, deadlines={"scheduled": 0.2})
ELASTIC = replace(JOB, min_nodes=1)
PATH = f"{JOBS}/{JOB.name}"

Fate = Callable[[FakeApiServer, dict[str, Any]], None]
"""How the server changes a new job."""


def size(found: Object) -> int:
    """How many pods the operator would make."""
    replicas: int = found["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    return replicas


def with_pods(server: FakeApiServer, found: dict[str, Any], **changes: Any) -> None:
    """All of a job's pods, alike but for those that `changes` names by their rank."""
    uid = found["metadata"]["uid"]
    for rank in (f"worker-{index}" for index in range(size(found))):
        own = {"phase": "Running", **changes.get(rank.replace("-", ""), changes.get("all", {}))}
        metadata = {"uid": f"{uid}-{rank}", "ownerReferences": [{"uid": uid}], **own.pop("metadata", {})}
        server.put(PODS, a_pod(JOB, rank, metadata=metadata, **own))


def reporting(found: dict[str, Any], *conditions: str, **annotations: str) -> dict[str, Any]:
    """The job with these conditions, and these annotations in addition to its own."""
    metadata = {**found["metadata"], "annotations": {**found["metadata"]["annotations"], **annotations}}
    return {**found, "metadata": metadata, "status": an_object(JOB, *conditions)["status"]}


def succeeds(server: FakeApiServer, found: dict[str, Any]) -> None:
    with_pods(server, found, all={"phase": "Succeeded", "state": ended(0)})
    server.put(JOBS, reporting(found, "Succeeded"))


def scaled(nodes: int) -> Fate:
    def fate(server: FakeApiServer, found: dict[str, Any]) -> None:
        with_pods(server, found)
        server.put(JOBS, reporting(found, "Running", **{REQUESTED_NODES: str(nodes)}))

    return fate


def evicted(server: FakeApiServer, found: dict[str, Any]) -> None:
    gone = {"phase": "Failed", "status": {"reason": "Evicted", "message": "the node is short of memory"}}
    with_pods(server, found, all={"phase": "Failed", "state": ended(1)}, worker1=gone)
    server.put(JOBS, reporting(found, "Failed"))


def has_nodes_for(count: int) -> Fate:
    def fate(server: FakeApiServer, found: dict[str, Any]) -> None:
        waits = {"phase": "Pending", "node": "", "state": {}}
        pending = {f"worker{rank}": waits for rank in range(count, size(found))}
        with_pods(server, found, all={"phase": "Pending", "state": {}}, **pending)
        server.put(JOBS, reporting(found, "Created"))

    return fate


class Made:
    """A server whose new jobs meet one fate after the other; the number of pods of each is kept."""

    def __init__(self, *fates: Fate) -> None:
        self.server, self.sizes, self._fates = a_server(), list[int](), iter(fates)
        self.server.created = self._meet

    def _meet(self, found: dict[str, Any]) -> None:
        self.sizes.append(size(found))
        next(self._fates)(self.server, found)

    def nodes(self, *cpus: str) -> None:
        """Let launchers see nodes with room for so many CPUs each, and nothing on them."""
        for number, cpu in enumerate(cpus):
            amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
            node = {"metadata": {"name": f"n{number}"}, "status": {"allocatable": amounts}}
            self.server.know("/api/v1/nodes", node)
        self.server.know("/api/v1/pods")

    def launched(self, job: TrainingJob = JOB) -> tuple[Outcome, str]:
        """What came of a launch, and what it said."""
        out = io.StringIO()
        return launch(job, self.server, exists=lambda _: True, out=out), out.getvalue()


# --- a node is lost ---------------------------------------------------------------------------------------

AGAIN = replace(JOB, restart="OnFailure", again=1)
SILENT = {"conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]}
GOING = {"deletionTimestamp": "2026-01-01T00:00:42Z", "deletionGracePeriodSeconds": 30}


def loses_a_node(server: FakeApiServer, found: dict[str, Any]) -> None:
    """Its second pod can never be removed, as no kubelet confirms its end."""
    going = {"status": SILENT, "metadata": {**GOING, "finalizers": ["the kubelet's"]}}
    with_pods(server, found, worker1=going)
    server.put(JOBS, reporting(found, "Running"))


def test_a_job_on_a_lost_node_is_created_again_under_another_name() -> None:
    """The pod that nobody can remove has the name that the operator would give to the new one."""
    made = Made(loses_a_node, succeeds_again)
    outcome, text = made.launched(replace(AGAIN, again=0))
    assert (outcome.name, made.sizes) == (AGAIN.name, [2, 2])
    assert AGAIN.name == f"{JOB.name[:-2]}-1"
    assert "worker-1 was lost with its node n1: removing" in text
    assert f"created PyTorchJob team/{AGAIN.name}" in text
    with pytest.raises(Refused, match="404"):
        made.server.get(f"{JOBS}/{AGAIN.name}")


def succeeds_again(server: FakeApiServer, found: dict[str, Any]) -> None:
    for rank in ("worker-0", "worker-1"):
        own = {"uid": f"again-{rank}", "ownerReferences": [{"uid": found["metadata"]["uid"]}]}
        server.put(PODS, a_pod(AGAIN, rank, "Succeeded", state=ended(0), metadata=own))
    server.put(JOBS, reporting(found, "Succeeded"))


def test_a_job_under_another_name_is_found_by_the_next_launcher() -> None:
    made = Made()
    found = an_object(AGAIN)
    found["metadata"]["annotations"][SPEC] = an_object(replace(AGAIN, again=0))["metadata"]["annotations"][
        SPEC
    ]
    succeeds_again(made.server, made.server.put(JOBS, found))
    outcome, text = made.launched(replace(AGAIN, again=0))
    assert (outcome.name, outcome.adopted) == (AGAIN.name, True)
    assert f"adopted PyTorchJob team/{AGAIN.name}" in text


def test_without_restarts_a_lost_node_is_a_failure() -> None:
    with pytest.raises(ReplicaFailed, match="node n1 has not reported for 40 s or more"):
        Made(loses_a_node).launched()


# --- asked for --------------------------------------------------------------------------------------------


def test_a_scaled_job_is_created_again_under_its_name() -> None:
    made = Made(scaled(3), succeeds)
    outcome, text = made.launched()
    assert made.sizes == [2, 3]
    assert (outcome.name, outcome.nodes, outcome.adopted) == (JOB.name, 3, False)
    assert f"scaled, nodes from 2 to 3: removing PyTorchJob team/{JOB.name} to create it again" in text
    assert f"created PyTorchJob team/{JOB.name} (nodes=3)" in text
    assert "3 of 3 pods" in text
    with pytest.raises(Refused, match="404"):
        made.server.get(PATH)


def test_a_job_may_be_scaled_again_and_back() -> None:
    made = Made(scaled(3), scaled(1), scaled(2), succeeds)
    outcome, _ = made.launched()
    assert made.sizes == [2, 3, 1, 2]
    assert outcome.nodes == 2


def a_job_of(nodes: int, asked: TrainingJob = JOB, **annotations: str) -> dict[str, Any]:
    """The object of a job that was made with another number of pods than asked for."""
    found, plain = an_object(replace(asked, nodes=nodes), "Running"), an_object(asked)
    own = {NODES: str(nodes), SPEC: plain["metadata"]["annotations"][SPEC]}
    return reporting(found, "Running", **own, **annotations)


def test_a_scaled_job_whose_launcher_died_is_adopted_as_it_is() -> None:
    made = Made()
    found = a_job_of(3)
    with_pods(made.server, found, all={"phase": "Succeeded", "state": ended(0)})
    made.server.put(JOBS, reporting(found, "Succeeded"))
    outcome, text = made.launched()
    assert (outcome.uid, outcome.adopted, outcome.nodes) == (UID, True, 3)
    assert "3 of 3 pods" in text


def test_a_scaled_job_continues_its_limit_with_another_launcher() -> None:
    """Jobs before it worked for two hours; the one that exists has just begun."""
    job = replace(JOB, deadlines={"finished": 3600})
    made, found = Made(), a_job_of(3, job, **{WORKED: "7200"})
    with_pods(made.server, found)
    made.server.put(JOBS, found)
    with pytest.raises(DeadlineExceeded, match="3600"):
        made.launched(job)


def test_a_job_created_again_notes_how_long_its_step_has_worked() -> None:
    made = Made(succeeds)
    attempt = Attempt(made.server, JOB, JOB, BACKEND, print, worked=42.4)
    found, _ = adopt_or_create(attempt)
    assert found["metadata"]["annotations"][WORKED] == "42"


def test_a_request_to_scale_survives_its_launcher() -> None:
    made = Made(succeeds)
    found = a_job_of(2, **{REQUESTED_NODES: "3"})
    with_pods(made.server, found)
    made.server.put(JOBS, found)
    outcome, _ = made.launched()
    assert (made.sizes, outcome.nodes) == ([3], 3)


def test_a_job_that_was_being_resized_has_its_declared_size() -> None:
    made = Made(scaled(3), succeeds)
    creates_again = lambda request: request == Request("POST", JOBS) and len(made.sizes) == 1  # noqa: E731
    made.server.fail(creates_again, Refused(422, "Invalid", "died"), times=1)
    with pytest.raises(Exception, match="died"):
        made.launched()
    outcome, _ = made.launched()
    assert (made.sizes, outcome.nodes) == ([2, 2], 2)


def test_a_scaled_job_that_is_asked_for_differently_is_left_alone() -> None:
    made = Made()
    made.server.put(JOBS, a_job_of(3))
    for other in (replace(JOB, image="another:1"), replace(JOB, nodes=3)):
        with pytest.raises(NameTaken, match="a different spec"):
            made.launched(other)
    assert made.server.get(PATH)


def test_an_impossible_size_leaves_the_job_as_it_was() -> None:
    made = Made(scaled(3), succeeds)
    made.nodes("2")
    outcome, text = made.launched()
    assert (made.sizes, outcome.nodes) == ([2, 2], 2)
    assert "3 pods are not possible, continuing with as many as before: 1 problem" in text
    assert "the nodes can take 2 of the job's 3 pods" in text


def test_a_job_that_cannot_be_created_again_in_its_size_has_failed() -> None:
    """There is no other size to fall back to."""

    def loses_its_rights(server: FakeApiServer, found: dict[str, Any]) -> None:
        evicted(server, found)
        server.allowed = lambda _: False

    made, out = Made(loses_its_rights), io.StringIO()
    with pytest.raises(PreflightFailed):
        launch(ELASTIC, made.server, exists=lambda _: True, out=out)
    assert "to create it again" in out.getvalue()
    assert "not possible" not in out.getvalue()


@pytest.mark.parametrize("text", ["0", "-1", "10001", "many", "2.5", ""])
def test_a_number_that_no_job_can_have_is_ignored(text: str) -> None:
    assert elastic.requested(a_job_of(2, **{REQUESTED_NODES: text}), 2) is None


def test_a_job_that_somebody_deletes_is_not_created_again() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:01:00Z"}
    found = a_job_of(2, **{REQUESTED_NODES: "3"})
    assert elastic.requested({**found, "metadata": {**found["metadata"], **going}}, 2) is None

    def deleted(server: FakeApiServer, found: dict[str, Any]) -> None:
        evicted(server, {**found, "metadata": {**found["metadata"], **going, "finalizers": ["a/b"]}})

    made = Made(deleted)
    with pytest.raises(ReplicaFailed, match="Evicted"):
        made.launched(ELASTIC)
    assert made.sizes == [2]


def test_a_pod_alone_gets_a_service_when_others_join_it() -> None:
    server, job = FakeApiServer(), replace(JOB, backend="indexedjob", nodes=1)
    server.serve(resources.JOBS, resources.SERVICES, resources.PODS, resources.EVENTS, resources.QUOTAS)
    jobs, services = resources.JOBS.path("team"), resources.SERVICES.path("team")
    seen: list[tuple[str, int]] = []

    def operate(made: dict[str, Any]) -> None:
        found = server.get(f"{jobs}/{job.name}")
        seen.append((made["kind"], found["spec"]["completions"]))
        if made["kind"] == "Service":
            done = {"conditions": [{"type": "Complete", "status": "True"}]}
            server.put(jobs, {**found, "status": {**done, "succeeded": found["spec"]["completions"]}})
        elif found["spec"]["completions"] == 1:
            server.annotate(f"{jobs}/{job.name}", found["metadata"]["uid"], {REQUESTED_NODES: "2"})

    server.created = operate
    assert launch(job, server, exists=lambda _: True, out=io.StringIO()).nodes == 2
    assert seen == [("Job", 1), ("Job", 2), ("Service", 2)]
    assert server.get(services)["items"] == []


# --- lost -------------------------------------------------------------------------------------------------


def test_a_job_that_lost_a_pod_continues_with_one_fewer() -> None:
    made = Made(evicted, succeeds)
    outcome, text = made.launched(ELASTIC)
    assert (made.sizes, outcome.nodes) == ([2, 1], 1)
    assert "worker-1 was lost: its pod was removed (Evicted: the node is short of memory)" in text


def test_a_job_never_has_fewer_pods_than_it_may() -> None:
    made = Made(evicted, evicted, succeeds)
    assert made.launched(replace(JOB, nodes=3, min_nodes=2))[0].nodes == 2
    assert made.sizes == [3, 2, 2]


def test_where_nodes_can_be_seen_it_continues_with_those_that_fit() -> None:
    made = Made(evicted, succeeds)
    made.nodes("2", "1")
    assert made.launched(replace(ELASTIC, nodes=3))[0].nodes == 3
    assert made.sizes == [3, 3]


def test_a_job_survives_as_many_losses_as_restarts_are_allowed() -> None:
    made = Made(evicted, evicted, evicted)
    with pytest.raises(ReplicaFailed, match="Evicted") as caught:
        made.launched(replace(JOB, min_nodes=2, max_restarts=2))
    assert made.sizes == [2, 2, 2]
    assert "min_nodes" not in str(caught.value)


def test_a_lost_pod_fails_a_job_that_is_not_elastic() -> None:
    made = Made(evicted)
    with pytest.raises(
        ReplicaFailed, match="With `min_nodes`, or with `restart` ExitCode, it would continue by itself"
    ):
        made.launched()


GOING = {"deletionTimestamp": "2026-01-01T00:00:50Z", "deletionGracePeriodSeconds": 30}
"""Asked to go in second 20."""


@pytest.mark.parametrize(("second", "continues"), [(10, False), (20, True), (21, True)])
def test_a_pod_removed_after_another_failed_was_not_lost(second: int, continues: bool) -> None:
    """In the same second the others lost contact with it."""

    def fate(server: FakeApiServer, found: dict[str, Any]) -> None:
        failed = {"phase": "Failed", "state": ended(1, at=f"2026-01-01T00:00:{second}Z")}
        with_pods(server, found, worker0=failed, worker1={"metadata": GOING})
        server.put(JOBS, reporting(found, "Failed"))

    made = Made(fate, succeeds)
    if continues:
        assert made.launched(ELASTIC)[0].nodes == 1
    else:
        with pytest.raises(ReplicaFailed, match="exit code 1"):
            made.launched(ELASTIC)


# --- never given a node -----------------------------------------------------------------------------------


def test_a_job_continues_without_pods_that_get_no_node() -> None:
    made = Made(has_nodes_for(2), succeeds)
    outcome, text = made.launched(replace(ELASTIC, nodes=4))
    assert (made.sizes, outcome.nodes) == ([4, 2], 2)
    assert "not all pods got a node in time (2 of 4 have a node): removing" in text


def test_a_job_continues_without_pods_that_are_rejected() -> None:
    def refused(server: FakeApiServer, found: dict[str, Any]) -> None:
        has_nodes_for(2)(server, found)
        server.drop(f"{PODS}/{JOB.name}-worker-2")
        refusal = {"reason": "FailedCreatePod", "type": "Warning", "message": "exceeded quota: pods"}
        about = {"involvedObject": {"uid": found["metadata"]["uid"]}, "metadata": {"name": "e"}}
        server.put(EVENTS, {**refusal, **about})

    made = Made(scaled(3), refused, succeeds)
    outcome, text = made.launched(replace(JOB, deadlines={"hopeless": 0.1}))
    assert (made.sizes, outcome.nodes) == ([2, 3, 2], 2)
    assert "the cluster rejects the job's pods (2 of 3 have a node): removing" in text


def test_too_few_pods_with_a_node_are_no_job() -> None:
    for job in (JOB, replace(JOB, min_nodes=2)):
        with pytest.raises(Unschedulable):
            Made(has_nodes_for(1)).launched(job)


def test_a_job_scaled_up_too_far_falls_back_to_what_fits() -> None:
    made = Made(scaled(4), has_nodes_for(3), succeeds)
    assert made.launched()[0].nodes == 3
    assert made.sizes == [2, 4, 3]


@pytest.mark.parametrize(("cpus", "nodes"), [(("1", "1"), 2), (("8",), 4), (("500m",), 1)])
def test_a_job_starts_with_as_many_pods_as_the_nodes_have_room_for(cpus: list[str], nodes: int) -> None:
    made = Made(succeeds)
    made.nodes(*cpus)
    outcome, text = made.launched(replace(ELASTIC, nodes=4, preflight="warn"))
    assert (made.sizes, outcome.nodes) == ([nodes], nodes)
    assert ("of 4 pods fit on the nodes at the moment" in text) is (nodes < 4)


def test_what_a_job_was_created_with_is_in_its_annotations() -> None:
    noted = {NODES: "3", WORKED: "42", REQUESTED_NODES: "4"}
    found = [{"metadata": {"annotations": one}} for one in (noted, {WORKED: "4.2"}, None)]
    assert [elastic.size_of(one) for one in found] == [3, None, None]
    assert [elastic.worked_before(one) for one in found] == [42, 0, 0]
    scaled_up = Resize(4, 4, "scaled, nodes from 3 to 4")
    assert [elastic.requested(one, 3) for one in found] == [scaled_up, None, None]
    assert elastic.requested(found[0], 4) is None
    assert elastic.size_of({"metadata": {"annotations": {NODES: "10000"}}}) == 10000
    assert elastic.size_of({"metadata": {"annotations": {NODES: "1"}}}) == 1


@pytest.mark.parametrize(("count", "nodes"), [(0, None), (1, None), (2, 2), (3, 3), (4, None)])
def test_a_job_is_reduced_to_pods_with_a_node_if_they_are_enough(count: int, nodes: int | None) -> None:
    job = replace(JOB, nodes=4)
    waits = {"phase": "Pending", "node": "", "state": {}}
    pods = [a_pod(job, f"worker-{rank}", **({} if rank < count else waits)) for rank in range(4)]
    found = BACKEND.status(job, an_object(job, "Created"), pods, Cache())
    why = f"no room ({nodes} of 4 have a node)"
    expected = Resize(nodes, nodes, why) if nodes else None
    assert elastic.reduced_to_scheduled(found, 4, 2, "no room") == expected


@pytest.mark.parametrize(("nodes", "least", "fewer"), [(3, 1, 2), (3, 3, 3), (1, 1, 1), (3, 0, None)])
def test_a_job_that_lost_a_pod_has_one_fewer_if_it_may(nodes: int, least: int, fewer: int | None) -> None:
    job = replace(JOB, nodes=nodes, min_nodes=least)
    pods = [
        replica_of(
            a_pod(job, f"worker-{rank}", "Failed", status={"reason": "Evicted"}), f"worker-{rank}", "pytorch"
        )
        for rank in range(nodes)
    ]
    why = f"worker-0 was lost: {diagnosis.how(pods[0])}"
    assert elastic.after_loss(job, pods) == (Resize(fewer, nodes, why) if fewer else None)
    assert elastic.after_loss(job, []) is None


def test_a_job_is_itself_again_without_the_pod_of_a_lost_node() -> None:
    stuck = replica_of(a_pod(JOB, "worker-1", metadata=GOING), "worker-1", "pytorch")
    again = Resize(2, 2, "worker-1 was lost with its node n1")
    assert elastic.after_loss(replace(JOB, restart="OnFailure"), [stuck], stuck) == again
    assert elastic.after_loss(replace(JOB, restart="Never"), [stuck], stuck) is None
    fewer = elastic.after_loss(replace(JOB, restart="OnFailure", min_nodes=1), [stuck], stuck)
    assert fewer == Resize(1, 2, "worker-1 was lost: its pod was deleted")


def test_fewer_pods_than_may_be_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"`min_nodes` is 3, more than `nodes` \(2\)"):
        Made().launched(replace(JOB, min_nodes=3))


# --- ddpipe jobs scale ------------------------------------------------------------------------------------


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """A server with a job of two pods, which commands reach."""
    server = a_server(a_job_of(2))
    monkeypatch.setattr(command, "connect", lambda: server)
    return server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["jobs", "scale", *arguments])


def test_scaling_annotates_the_job(running: FakeApiServer) -> None:
    done = run(JOB.name, "--nodes", "3")
    assert done.exit_code == 0, done.output
    assert f"requested: PyTorchJob team/{JOB.name}, nodes=3" in done.stdout
    found = running.get(PATH)["metadata"]["annotations"]
    assert (found[REQUESTED_NODES], found[NODES]) == ("3", "2")


def test_the_size_before_is_in_the_facts(running: FakeApiServer) -> None:
    done = run(JOB.name, "--nodes", "3", "--json")
    assert json.loads(done.stdout) == {"job": f"PyTorchJob team/{JOB.name}", "before": 2, "nodes": 3}


def test_a_request_may_be_withdrawn(running: FakeApiServer) -> None:
    run(JOB.name, "--nodes", "3")
    assert run(JOB.name, "--nodes", "2").exit_code == 0
    assert elastic.requested(running.get(PATH), 2) is None


@pytest.mark.parametrize("kind", [trainjob.RESOURCE, resources.JOBS], ids=lambda kind: kind.kind)
def test_a_job_of_any_kind_is_found(running: FakeApiServer, kind: resources.Resource) -> None:
    running.drop(PATH)
    running.serve(kind)
    running.put(kind.path("team"), {**a_job_of(2), "kind": kind.kind, "spec": {}})
    done = run(JOB.name, "--nodes", "3")
    assert f"{kind.kind} team/{JOB.name}, nodes=3" in done.stdout, done.output


def test_of_several_jobs_of_a_name_the_one_that_was_launched_is_scaled(running: FakeApiServer) -> None:
    for kind in (trainjob.RESOURCE, resources.JOBS):
        running.serve(kind)
        running.put(kind.path("team"), {"metadata": {"name": JOB.name, "namespace": "team"}, "spec": {}})
    done = run(JOB.name, "--nodes", "3")
    assert f"requested: PyTorchJob team/{JOB.name}, nodes=3" in done.stdout, done.output


@pytest.mark.parametrize(
    ("arguments", "found", "error", "words"),
    [
        ((JOB.name, "--nodes", "0"), a_job_of(2), ParameterError, "nodes is 0"),
        (("nobody", "--nodes", "3"), a_job_of(2), ParameterError, "there is no such job"),
        (
            (JOB.name, "--nodes", "3"),
            a_job_of(2, **{"ddpipe.dev/owner": "?"}),
            NameTaken,
            f"PyTorchJob team/{JOB.name}: something else created it; it was left alone",
        ),
        (
            (JOB.name, "--nodes", "3"),
            reporting(a_job_of(2), "Failed"),
            ParameterError,
            f"PyTorchJob team/{JOB.name}: it has failed",
        ),
        (
            (JOB.name, "--nodes", "3"),
            a_job_of(2) | {"metadata": a_job_of(2)["metadata"] | GOING | {"finalizers": ["a/b"]}},
            ParameterError,
            f"PyTorchJob team/{JOB.name}: it is being removed",
        ),
    ],
)
def test_a_job_that_cannot_be_scaled_is_an_error(
    running: FakeApiServer,
    arguments: tuple[str, ...],
    found: dict[str, Any],
    error: type[ParameterError],
    words: str,
) -> None:
    running.put(JOBS, found)
    done = run(*arguments)
    assert done.exit_code == error.exit_code, done.output
    assert words in done.stderr
    assert "PATCH" not in running.methods(PATH)


def test_a_right_that_scaling_needs_is_named(running: FakeApiServer) -> None:
    running.fail(lambda request: request.method == "PATCH", Refused(403, "Forbidden", "no"))
    done = run(JOB.name, "--nodes", "3")
    assert done.exit_code == Forbidden.exit_code
    assert '{apiGroups: ["kubeflow.org"], resources: ["pytorchjobs"], verbs: [patch]}' in done.stderr
