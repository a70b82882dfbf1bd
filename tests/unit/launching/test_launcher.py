"""The launch protocol from its entry point; tests/cluster tests it on a real Kubernetes."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from fake_api import FakeApiServer, Request
from launch_samples import JOBS, PODS, QUOTAS, UID, a_job, a_pod, a_server, an_object, ended

from ddpipe.__main__ import cli
from ddpipe.errors import (
    ClusterUnreachable,
    DeadlineExceeded,
    Forbidden,
    JobDeleted,
    NameTaken,
    OperatorSilent,
    OutputMissing,
    ParameterError,
    PodRefused,
    PreflightFailed,
    ReplicaFailed,
)
from ddpipe.jobs import trainjob
from ddpipe.jobs.backend import OwnedObject
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.pytorchjob import BACKEND, RESOURCE
from ddpipe.kube.api import Refused, Unanswered
from ddpipe.kube.resources import SERVICES, WORKFLOWS
from ddpipe.launching import adoption, launcher
from ddpipe.launching.adoption import Attempt
from ddpipe.launching.launcher import Outcome, launch
from ddpipe.parameters import AUTO

FORBIDDEN = Refused(403, "Forbidden", 'pods is forbidden: User "me" cannot do that')


def impatient(job: TrainingJob) -> TrainingJob:
    return replace(job, deadlines={**job.deadlines, "outage": 0.5})


def launched(job: TrainingJob, server: FakeApiServer, *, exists: bool = True) -> Outcome:
    return launched_and_printed(job, server, exists=exists)[0]


def launched_and_printed(
    job: TrainingJob, server: FakeApiServer, *, exists: bool = True
) -> tuple[Outcome, str]:
    """The outcome of a launch, and what it printed."""
    out = io.StringIO()
    try:
        return launch(impatient(job), server, exists=lambda _: exists, out=out), out.getvalue()
    except Exception as error:
        error.add_note(out.getvalue())
        raise


def path(job: TrainingJob) -> str:
    return RESOURCE.path("team", job.name)


def pods(job: TrainingJob, code: int = 0, **changes: Any) -> list[dict[str, Any]]:
    phase = "Failed" if code else "Succeeded"
    return [a_pod(job, f"worker-{rank}", phase, state=ended(code), **changes) for rank in range(2)]


def finished(job: TrainingJob, code: int = 0) -> FakeApiServer:
    return a_server(an_object(job, "Failed" if code else "Succeeded"), *pods(job, code))


def operated(job: TrainingJob, code: int = 0) -> FakeApiServer:
    """A server whose operator runs each new job to its end at once."""
    server = a_server()

    def operate(found: dict[str, Any]) -> None:
        uid = {"ownerReferences": [{"uid": found["metadata"]["uid"]}]}
        for pod in pods(job, code):
            pod["metadata"] |= uid | {"uid": f"{found['metadata']['uid']}-{pod['metadata']['name']}"}
            server.put(PODS, pod)
            server.logs[f"{PODS}/{pod['metadata']['name']}/log"] = [[]]
        conditions = an_object(job, "Failed" if code else "Succeeded")["status"]
        server.put(JOBS, {**found, "status": conditions})

    server.created = operate
    return server


def deletes(job: TrainingJob) -> Callable[[Request], bool]:
    return lambda request: (request.method, request.path) == ("DELETE", path(job))


def creates(request: Request) -> bool:
    return request.method == "POST" and request.path == JOBS and not request.query


def test_a_new_job_is_created_followed_and_removed() -> None:
    job = a_job()
    server = operated(job)
    began = time.monotonic()
    outcome = launched(job, server)
    assert (outcome.adopted, outcome.kept) == (False, False)
    assert 0 < outcome.seconds <= time.monotonic() - began
    assert sum(map(creates, server.asked)) == 1
    with pytest.raises(Refused, match="404"):
        server.get(path(job))


def test_a_job_that_succeeded_meanwhile_is_concluded_and_removed() -> None:
    job = a_job()
    server = finished(job)
    server.logs[f"{PODS}/{job.name}-worker-0/log"] = [[b"2026-01-01T00:00:00Z epoch=2 loss=0.5"]]
    outcome = launched(job, server)
    assert outcome == Outcome(
        name=job.name,
        namespace="team",
        uid=UID,
        adopted=True,
        kept=False,
        nodes=2,
        seconds=outcome.seconds,
        restarts=0,
        metrics={"epoch": 2, "loss": 0.5},
    )
    assert server.methods(path(job))[-1] == "DELETE"
    assert not any(map(creates, server.asked))


@pytest.mark.parametrize(("keep", "code", "kept"), [("always", 0, True), ("failed", 0, False)])
def test_a_kept_job_is_not_removed(keep: str, code: int, kept: bool) -> None:
    job = a_job(keep=keep)
    server = finished(job, code)
    assert launched(job, server).kept is kept
    assert ("DELETE" in server.methods(path(job))) is not kept


def test_a_failed_job_is_kept_if_that_was_asked() -> None:
    job = a_job(keep="failed")
    server = operated(job, code=1)
    with pytest.raises(ReplicaFailed):
        launched(job, server)
    assert server.get(path(job))


def test_a_success_without_its_output_is_none() -> None:
    job = a_job(outputs=["s3://b/model"])
    with pytest.raises(OutputMissing, match="s3://b/model"):
        launched(job, finished(job), exists=False)


def test_the_outputs_that_do_not_exist_are_named() -> None:
    job = a_job(outputs=["s3://b/log", "s3://b/model", "s3://b/report"])
    with pytest.raises(OutputMissing) as caught:
        launch(job, finished(job), exists=lambda uri: uri == "s3://b/log", out=io.StringIO())
    assert caught.value.seen == "nothing at s3://b/model, s3://b/report"


def test_the_time_that_an_adopted_job_has_run_counts() -> None:
    """Else each launcher that is evicted would give it its whole time again."""
    job = a_job(deadlines={"finished": 3600, "silence": 0.5})
    running = {"state": {"running": {"startedAt": "2026-01-01T00:05:00Z"}}}
    ran = [a_pod(job, f"worker-{rank}", **running) for rank in range(2)]
    with pytest.raises(DeadlineExceeded, match="still running after 3600 s"):
        launched(job, a_server(an_object(impatient(job), "Running"), *ran))


def test_the_pods_have_the_tracker_of_the_pod_that_launches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MLFLOW_TRACKING_URI": "http://t", "POD_NAME": "step", "POD_NAMESPACE": "team"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    job = a_job(keep="always")
    token = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}
    server = operated(job)
    server.put(PODS, {"metadata": {"name": "step", "uid": "u"}, "spec": {"containers": [{"env": [token]}]}})
    launched(job, server)
    replicas = server.get(path(job))["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert [one for one in container["env"] if one["name"].startswith("MLFLOW_")] == [
        {"name": "MLFLOW_TRACKING_URI", "value": "http://t"},
        token,
    ]


def test_a_failed_job_of_an_earlier_attempt_makes_room_for_a_new_one() -> None:
    job = a_job()
    server = operated(job)
    server.put(JOBS, an_object(job, "Failed"))
    for pod in pods(job, 1):
        server.put(PODS, pod)
    outcome, text = launched_and_printed(job, server)
    assert outcome.uid != UID
    assert f"[launch] removing PyTorchJob team/{job.name} of an earlier attempt\n" in text
    order = [request.method for request in server.asked if creates(request) or deletes(job)(request)]
    assert order == ["DELETE", "POST", "DELETE"]


def test_a_job_that_is_being_deleted_is_awaited_and_recreated() -> None:
    job = a_job()
    server = operated(job)
    going = an_object(job, "Running")
    going["metadata"] |= {"finalizers": ["a/b"], "deletionTimestamp": "2026-01-01T00:01:00Z"}
    server.put(JOBS, going)
    looks = iter(range(100))
    get = server.get

    def watched(at: str, query: Any = None) -> dict[str, Any]:
        if at == path(job) and next(looks) == 3:
            server.drop(at)
        return get(at, query)

    server.get = watched  # type: ignore[method-assign]
    outcome, text = launched_and_printed(job, server)
    assert outcome.uid != UID
    assert "waiting for the pods of an earlier attempt" in text


def test_a_deleted_job_that_stays_is_named_with_what_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "_REMOVAL_SECONDS", 0.2)
    job = a_job()
    found = an_object(job, "Failed")
    found["metadata"]["finalizers"] = ["a/b"]
    with pytest.raises(
        NameTaken, match=r"finalizers wait for: kubectl get -o yaml pytorchjobs\.kubeflow\.org"
    ):
        launched(job, a_server(found))


def test_pods_of_another_object_of_the_same_name_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator takes long to recover when it meets them; but they are no reason to give up."""
    monkeypatch.setattr(adoption, "_REMOVAL_SECONDS", 0.3)
    job = a_job()
    server = operated(job)
    server.put(PODS, a_pod(job, "worker-5", metadata={"ownerReferences": [{"uid": "an earlier one"}]}))
    outcome, text = launched_and_printed(job, server)
    assert not outcome.adopted
    assert "waiting for the pods of an earlier attempt to end" in text
    assert (
        f"1 pods of an earlier attempt have not ended, continuing without them: {job.name}-worker-5" in text
    )


class _Acting(io.StringIO):
    """An output that acts when a text is printed."""

    def __init__(self, text: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._text, self._act = text, act

    def write(self, text: str) -> int:
        if self._text in text:
            self._act()
        return super().write(text)


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_quota_that_still_counts_removed_pods_is_waited_for(
    is_freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "_QUOTA_SECONDS", 60 if is_freed else 0.1)
    job = a_job()
    server = operated(job)
    server.put(JOBS, an_object(job, "Failed"))

    def quota(used: int) -> dict[str, Any]:
        status = {"hard": {"pods": "2"}, "used": {"pods": str(used)}}
        return {"metadata": {"name": "small"}, "spec": {}, "status": status}

    server.put(QUOTAS, quota(2))
    if not is_freed:
        with pytest.raises(PreflightFailed, match="leaves 0 of pods"):
            launched(job, server)
        return
    out = _Acting("leave the quota", lambda: server.put(QUOTAS, quota(0)))
    outcome = launch(impatient(job), server, exists=lambda _: True, out=out)
    text = out.getvalue()
    assert not outcome.adopted
    assert "waiting for the pods of an earlier attempt to leave the quota: quota small" in text


def test_a_busy_server_is_asked_again_for_old_pods() -> None:
    job = a_job()
    server = operated(job)
    server.fail(
        lambda request: request.path == PODS and "labelSelector" in request.query,
        Refused(429, "TooManyRequests", "busy"),
        times=1,
    )
    assert not launched(job, server).adopted


def test_a_job_that_is_only_to_be_followed_is_never_made() -> None:
    job, empty = a_job(), a_server()
    out = io.StringIO()
    followed = partial(launch, exists=lambda _: True, out=out, begin=adoption.adopt)
    assert followed(job, finished(job)).adopted
    assert f"adopted PyTorchJob team/{job.name}, created 2026-01-01" in out.getvalue()
    with pytest.raises(JobDeleted, match=job.name):
        followed(job, empty)
    assert not any(map(creates, empty.asked))


def test_a_stop_request_knows_of_a_create_request() -> None:
    job = a_job()
    server, seen = operated(job), list[bool]()
    attempt = Attempt(server, job, job, BACKEND, print)
    operate = server.created
    assert operate

    def operate_and_look(found: dict[str, Any]) -> None:
        seen.append(attempt.creating.is_set())
        operate(found)

    server.created = operate_and_look
    adoption.adopt_or_create(attempt)
    assert seen == [True]
    assert not attempt.creating.is_set()


def test_a_process_handles_signals_only_while_it_launches() -> None:
    job, before = a_job(), signal.getsignal(signal.SIGTERM)
    handlers: list[Any] = []

    def exists(_: str) -> bool:
        handlers.append(signal.getsignal(signal.SIGTERM))
        return True

    writes = replace(job, outputs=("s3://b/a",))
    launch(writes, finished(job), exists=exists, out=io.StringIO(), is_process=True)
    launch(writes, finished(job), exists=exists, out=io.StringIO())
    assert handlers[0] is not before
    assert handlers[1] is before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_busy_server_is_waited_for_before_the_job_is_found() -> None:
    job = a_job()
    server = finished(job)
    busy = Refused(503, "ServiceUnavailable", "starting")
    server.fail(lambda request: (request.method, request.path) == ("GET", path(job)), busy, times=1)
    assert launched(job, server).adopted


def test_of_two_launchers_at_once_one_creates_and_the_other_adopts() -> None:
    job = a_job()
    server = operated(job)
    create = server.create

    def beaten(at: str, body: Any, query: Any = None) -> dict[str, Any]:
        if at == JOBS and not query:
            create(at, body)  # another launcher, just now
        return create(at, body, query)

    server.create = beaten  # type: ignore[method-assign]
    assert launched(job, server).adopted


@pytest.mark.parametrize("error", [Refused(409, "Conflict", "uid"), Refused(404, "NotFound", "gone")])
def test_that_somebody_else_deleted_or_replaced_the_job_is_as_good(error: Refused) -> None:
    job = a_job()
    server = finished(job)
    server.fail(deletes(job), error)
    assert not launched(job, server).kept


def test_a_stranger_s_job_is_left_alone() -> None:
    job = a_job()
    found = an_object(job, "Failed")
    del found["metadata"]["annotations"]
    server = a_server(found)
    with pytest.raises(NameTaken, match="did not create"):
        launched(job, server)
    assert "DELETE" not in server.methods(path(job))


def test_a_job_that_was_asked_for_differently_is_left_alone() -> None:
    job = a_job()
    server = a_server(an_object(job, "Running"))
    with pytest.raises(NameTaken, match="a different spec"):
        launched(a_job(image="another:1"), server)
    assert "DELETE" not in server.methods(path(job))


def test_a_failed_job_s_cause_is_known_before_it_is_removed() -> None:
    job = a_job()
    server = operated(job, code=3)
    with pytest.raises(ReplicaFailed, match="exit code 3"):
        launched(job, server)
    assert server.methods(path(job))[-1] == "DELETE"


@pytest.mark.parametrize(
    "error", [Refused(429, "TooManyRequests", "busy"), Refused(500, "", "etcd"), FORBIDDEN, Unanswered("cut")]
)
def test_a_clean_up_that_fails_does_not_turn_a_success_red(error: Exception) -> None:
    job = a_job()
    server = finished(job)
    server.fail(deletes(job), error)  # type: ignore[arg-type]
    outcome, text = launched_and_printed(job, server)
    assert outcome.kept
    assert f"[launch] PyTorchJob team/{job.name} could not be removed: {error}" in text
    assert "the cluster itself does so 24 h after" in text


def test_how_to_remove_a_job_that_does_not_expire_is_printed() -> None:
    job, out = a_job(), io.StringIO()
    server = finished(job)
    server.fail(deletes(job), FORBIDDEN)
    launch(job, server, exists=lambda _: True, out=out, wrap=lambda kind: replace(kind, expires=False))
    assert "do so later: ddpipe jobs clean-up --run-id run-1\n" in out.getvalue()


@pytest.mark.parametrize("error", [Refused(500, "", "etcd"), FORBIDDEN])
def test_a_clean_up_that_fails_is_reported_after_the_cause(error: Refused) -> None:
    job = a_job()
    server = operated(job, code=3)
    server.fail(deletes(job), error)
    with pytest.raises(ReplicaFailed) as caught:
        launched(job, server)
    text = str(caught.value)
    assert text.index("exit code 3") < text.index(f"could not be removed: {error}")


def test_a_job_that_may_no_longer_be_followed_is_removed() -> None:
    job = a_job(deadlines={"hopeless": 0.3})
    server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
    server.fail(lambda request: request.path == PODS and "watch" in request.query, FORBIDDEN)
    server.fail(lambda request: request.path == PODS and request.method == "GET", FORBIDDEN)
    with pytest.raises(Forbidden, match=r"images/rbac\.yaml") as caught:
        launched(job, server)
    assert "does not answer" not in str(caught.value)
    assert caught.value.which == f"PyTorchJob team/{job.name}"
    assert "the API server refuses, waiting: HTTP 403" in caught.value.__notes__[0]
    assert server.methods(path(job))[-1] == "DELETE"


def test_a_rejection_before_a_backend_is_chosen_names_the_job() -> None:
    server = a_server()
    server.fail(lambda _: True, Refused(400, "BadRequest", "not in this way"))
    with pytest.raises(PodRefused) as caught:
        launched(a_job(backend="auto"), server)
    assert caught.value.which == f"job {a_job().namespace}/{a_job().name}"


def test_a_refusal_of_a_moment_is_ridden_out() -> None:
    """An API server that has just started does not know all its roles."""
    job = a_job(deadlines={"hopeless": 5})
    server = finished(job)
    lists_pods = iter([False, True, True])
    server.fail(lambda request: request.path == PODS and next(lists_pods, False), FORBIDDEN, times=2)
    assert launched(job, server).adopted


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Unanswered("refused"), ClusterUnreachable), (Refused(401, "Unauthorized", "expired"), Forbidden)],
)
def test_a_job_out_of_reach_is_left_for_the_next_attempt(error: Exception, expected: type[Exception]) -> None:
    job = a_job()
    server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
    server.fail(lambda request: "watch" in request.query or request.path == PODS, error)  # type: ignore[arg-type]
    with pytest.raises(expected):
        launched(job, server)
    assert "DELETE" not in server.methods(path(job))


def test_a_job_that_somebody_deletes_is_not_deleted_again() -> None:
    job = a_job()
    server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
    asked = iter(range(100))
    server.fail(lambda request: "watch" in request.query and next(asked) == 1, Unanswered("cut"), times=1)

    def meddled(request: Request) -> bool:
        if request.path == PODS and "watch" in request.query and path(job) in server._objects:
            server._drop(path(job))
        return False

    server.fail(meddled, Unanswered(""))
    with pytest.raises(JobDeleted):
        launched(job, server)
    assert "DELETE" not in server.methods(path(job))


def test_a_hopeless_job_is_removed() -> None:
    job = a_job(deadlines={"hopeless": 0.1})
    waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": "absent"}}
    found = [a_pod(job, f"worker-{rank}", "Pending", state=waiting) for rank in range(2)]
    server = a_server(an_object(job, "Created"), *found)
    with pytest.raises(Exception, match="ErrImageNeverPull"):
        launched(job, server)
    assert server.methods(path(job))[-1] == "DELETE"


def test_a_silent_operator_is_waited_for_a_while_and_named() -> None:
    job = a_job(deadlines={"reconciled": 0.1})
    server = a_server()
    words = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": connection refused'
    server.fail(lambda request: request.method == "POST" and request.path == JOBS, Refused(500, "", words))
    with pytest.raises(OperatorSilent, match="the Training Operator does not answer"):
        launched(job, server)
    assert not any(map(creates, server.asked))


def test_an_operator_that_is_back_in_time_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(adoption.time, "sleep", pauses.append)
    job = a_job(deadlines={"hopeless": 0.01, "reconciled": 30})
    server = operated(job)
    words = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": connection refused'
    silent = Refused(500, "", words)
    server.fail(lambda request: request.method == "POST" and request.path == JOBS, silent, times=3)
    outcome, text = launched_and_printed(job, server)
    assert not outcome.adopted
    assert pauses[:3] == [1, 1, 1]
    assert text.count("waiting: ") == 1


def test_an_operator_that_falls_silent_after_the_check_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption.time, "sleep", lambda _: None)
    job = a_job(deadlines={"hopeless": 0.01, "reconciled": 30})
    server = operated(job)
    words = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": connection refused'
    server.fail(creates, Refused(500, "", words), times=1)
    assert not launched(job, server).adopted


def test_a_stranger_s_webhook_is_not_the_operator() -> None:
    job = a_job(deadlines={"reconciled": 0.1})
    server = a_server()
    words = 'failed calling webhook "mutate.kyverno.svc": connection refused'
    server.fail(lambda request: request.method == "POST" and request.path == JOBS, Refused(500, "", words))
    with pytest.raises(OperatorSilent, match="a webhook of the cluster does not answer"):
        launched(job, server)


def test_a_rejected_create_is_reported_in_the_server_s_words() -> None:
    job = a_job()
    server = a_server()
    server.fail(creates, Refused(422, "Invalid", "spec.x: Required value"))
    with pytest.raises(PodRefused, match=r"spec\.x: Required value"):
        launched(job, server)


def test_wrong_options_are_reported_before_the_first_request() -> None:
    server = a_server()
    nameless = {"spec": {"containers": [{"image": "other:1"}]}}
    wrong = [a_job(patch=nameless), a_job(deadlines={"running": float("nan")})]
    wrong += [a_job(volumes=["claim:data:/data", "secret:key:/data"])]
    for job in wrong:
        with pytest.raises(ParameterError):
            launch(job, server, exists=lambda _: True, out=io.StringIO())
    assert server.asked == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["launch", "--image", "trainer:1", "--deadlines", "running=NaN"], "running is nan"),
        (["launch", "--image", "trainer:1", "--nodes", "0"], "nodes is 0"),
        (["train", "--backend", "pytorchjob", "--image", "trainer:1", "--epochs", "0"], "epochs is 0"),
    ],
)
def test_wrong_options_are_reported_before_a_cluster_is_sought(
    command: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    needed = ["--runs", "runs", "--run", "r", "--dataset", "d"] if command[0] == "train" else []
    result = CliRunner().invoke(cli, [*command, *needed])
    assert problem in result.output, result.output
    assert result.exit_code == ParameterError.exit_code


@pytest.mark.parametrize(
    ("pods", "named"),
    [
        (1, "worker-0"),
        (3, "worker-0, worker-1, worker-2"),
        (8, "worker-6, worker-7"),
        (64, "worker-7 and 56 more"),
    ],
)
def test_logs_that_are_not_read_to_their_end_are_one_line(
    pods: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = tuple(f"worker-{number}" for number in range(pods))
    monkeypatch.setattr(launcher.Logs, "finish", lambda _: unread)
    printed = launched_and_printed(a_job(), finished(a_job()))[1]
    assert printed.count("could not be read to their end") == 1
    assert f"{named}\n" in printed


def test_the_backend_that_was_chosen_is_printed() -> None:
    job = a_job()
    printed = launched_and_printed(replace(job, backend=AUTO), operated(job))[1]
    assert "backend pytorchjob" in printed


def test_jobs_of_earlier_runs_are_removed_before_the_new_one() -> None:
    earlier = a_job(owner=replace(a_job().owner, run_id="run-0"))
    left = an_object(earlier, "Running")
    left["metadata"] |= {"uid": "left", "ownerReferences": [{"kind": "Pod", "name": "gone", "uid": "gone"}]}
    job = a_job()
    server = operated(job)
    server.put(JOBS, left)
    _, text = launched_and_printed(job, server)
    assert f"removed PyTorchJob team/{earlier.name}: run run-0 is over" in text
    order = [request.path for request in server.asked if deletes(earlier)(request) or creates(request)]
    assert order == [path(earlier), JOBS]


def test_a_launch_looks_at_twenty_earlier_runs() -> None:
    """One request for each: what is left, the next launch removes."""
    job = a_job()
    server = operated(job)
    for number in range(25):
        left = an_object(a_job(owner=replace(job.owner, run_id=f"earlier-{number}")), "Running")
        owner = {"kind": "Pod", "name": f"gone-{number}", "uid": f"gone-{number}"}
        left["metadata"] |= {"uid": f"left-{number}", "ownerReferences": [owner]}
        server.put(JOBS, left)
    _, text = launched_and_printed(job, server)
    assert text.count("is over") == 20


def test_that_nothing_can_be_swept_is_no_reason_to_fail() -> None:
    job = a_job()
    server = operated(job)
    selector = "app.kubernetes.io/managed-by=ddpipe,ddpipe.dev/pipeline=digits"
    server.fail(lambda request: request.query.get("labelSelector") == selector, FORBIDDEN)
    outcome, text = launched_and_printed(job, server)
    assert not outcome.adopted
    assert "could not look for jobs of earlier runs: HTTP 403" in text


def test_a_right_missing_at_once_is_listed_with_all_others() -> None:
    job = a_job()
    server = a_server()
    server.fail(lambda request: request.path == path(job), FORBIDDEN)
    server.allowed = lambda asked: asked["verb"] not in {"get", "watch"}
    with pytest.raises(PreflightFailed, match=r'(?s)\["pytorchjobs"\], verbs: \[get, watch\].*"pods/log"'):
        launched(job, server)


def test_what_the_check_remarks_is_printed() -> None:
    job = a_job(preflight="warn", volumes=["claim:data:/data"])
    _, text = launched_and_printed(job, operated(job))
    assert text.count("[launch] PersistentVolumeClaim data does not exist in namespace team") == 1


def test_a_new_job_is_annotated_with_what_an_adopting_launcher_has_to_know() -> None:
    job, server = a_job(again=0), a_server()
    said: list[str] = []
    found, existed = adoption.adopt_or_create(Attempt(server, job, job, BACKEND, said.append))
    own = {"ddpipe.dev/nodes": "2"}
    assert found["metadata"]["annotations"] == BACKEND.manifest(job, None)["metadata"]["annotations"] | own
    assert (existed, said) == (False, [f"created PyTorchJob team/{job.name}"])
    listed = [request.query for request in server.asked if request.path == JOBS and request.query]
    assert listed[0] == {"labelSelector": "app.kubernetes.io/managed-by=ddpipe,ddpipe.dev/run=run-1"}


@pytest.mark.parametrize("has_crd", [True, False])
def test_a_new_job_has_the_fields_that_its_kind_has_on_this_cluster(*, has_crd: bool) -> None:
    """An older Trainer names the overrides of pods in another way."""
    job, server, kind = (
        a_job(backend="trainjob", runtime="ours", preflight="warn"),
        a_server(),
        trainjob.BACKEND,
    )
    fields = {"podSpecOverrides": {"items": {"properties": {"volumes": dict[str, Any]()}}}}
    server.serve(trainjob.RESOURCE)
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": fields}}}}
    version = {"name": trainjob.RESOURCE.version, "schema": schema}
    crd = {"metadata": {"name": trainjob.RESOURCE.full_name}, "spec": {"versions": [version]}}
    if has_crd:
        server.know("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    else:
        server.describe(trainjob.RESOURCE, **fields)
    found, _ = adoption.adopt_or_create(Attempt(server, job, job, kind, lambda _: None))
    assert found["spec"] == kind.manifest(job, fields)["spec"] != kind.manifest(job, None)["spec"]
    assert found["metadata"]["annotations"]["ddpipe.dev/nodes"] == "2"


def test_of_several_jobs_of_a_step_the_last_is_adopted() -> None:
    """The others have other names, as pods of theirs cannot be removed."""
    server, said = a_server(), list[str]()
    for again in (1, 3, 2):
        server.put(JOBS, an_object(a_job(again=again), "Running"))
    found, existed = adoption.adopt(Attempt(server, a_job(), a_job(), BACKEND, said.append))
    assert (found["metadata"]["name"], existed) == (a_job(again=3).name, True)
    assert said == [f"adopted PyTorchJob team/{a_job(again=3).name}, created 2026-01-01T00:00:00Z"]


def test_old_pods_are_waited_for_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    job, server, said, pauses = a_job(), a_server(), list[str](), list[float]()
    old = server.put(PODS, a_pod(job, metadata={"ownerReferences": [{"uid": "an earlier one"}]}))

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.drop(f"{PODS}/{old['metadata']['name']}")

    monkeypatch.setattr(adoption.time, "sleep", pause)
    attempt = Attempt(server, job, job, BACKEND, said.append)
    assert adoption.with_free_names(attempt) == attempt
    assert (said, len(pauses)) == (["waiting for the pods of an earlier attempt to end"], 3)


def test_of_many_pods_that_do_not_end_five_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "_REMOVAL_SECONDS", -1)
    job, server, said = a_job(), a_server(), list[str]()
    for number in range(7):
        owner = {"ownerReferences": [{"uid": "an earlier one"}]}
        server.put(PODS, a_pod(job, f"worker-{number}", metadata=owner))
    next_one = adoption.with_free_names(Attempt(server, job, job, BACKEND, said.append))
    assert next_one.job == replace(job, again=1)
    assert said[0].startswith("7 pods of an earlier attempt have not ended")
    named = ", ".join(f"{job.name}-worker-{number}" for number in range(5))
    assert said[0].endswith(f": {named}")


def test_a_quota_is_waited_for_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    job, server, said, pauses = a_job(), a_server(), list[str](), list[float]()
    full = {"hard": {"pods": "2"}, "used": {"pods": "2"}}
    server.put(QUOTAS, {"metadata": {"name": "small"}, "spec": {}, "status": full})

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.drop(f"{QUOTAS}/small")

    monkeypatch.setattr(adoption.time, "sleep", pause)
    adoption._await_free_quota(Attempt(server, job, job, BACKEND, said.append))
    assert (len(said), len(pauses)) == (1, 3)


class Seconds:
    """A clock on which every pause takes one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1


@pytest.mark.parametrize(("what", "seconds"), [("pods", 90), ("quota", 60), ("service", 90)])
def test_what_a_removed_job_leaves_is_waited_for_for_so_long(
    what: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods have half a minute to end; on a busy cluster quotas, and what a job owned, follow late."""
    monkeypatch.setattr(adoption, "time", clock := Seconds())
    job, server = a_job(), a_server()
    attempt = Attempt(server, job, job, BACKEND, lambda _: None)
    if what == "pods":
        server.put(PODS, a_pod(job, metadata={"ownerReferences": [{"uid": "an earlier one"}]}))
        assert adoption.with_free_names(attempt).job.again == 1
    elif what == "quota":
        full = {"hard": {"pods": "2"}, "used": {"pods": "2"}}
        server.put(QUOTAS, {"metadata": {"name": "small"}, "spec": {}, "status": full})
        adoption._await_free_quota(attempt)
    else:
        owned = OwnedObject.of(SERVICES, job)
        server.serve(SERVICES)
        former = {"kind": "PyTorchJob", "name": job.name, "uid": "an earlier one"}
        metadata = {**owned.manifest["metadata"], "ownerReferences": [former]}
        server.put(SERVICES.path("team"), {**owned.manifest, "metadata": metadata})
        with pytest.raises(NameTaken, match=f"the name that PyTorchJob team/{job.name} needs is taken"):
            adoption._ensure(attempt, an_object(job), owned)
    assert clock.now == seconds + 1


def test_a_new_job_belongs_to_the_run_of_the_pod_that_launches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    job = a_job(keep="always")
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "w-uid"}
    bystander = {**workflow, "uid": "other"}
    owners = [
        (None, [{"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "step-uid"}]),
        ([bystander, {**workflow, "controller": True}], [workflow]),
        ([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "n", "uid": "n", "controller": True}], []),
    ]
    for given, expected in owners:
        server = operated(job)
        server.put(PODS, {"metadata": {"name": "step", "uid": "step-uid", "ownerReferences": given}})
        server.know(WORKFLOWS.path("team"), {"metadata": {"name": "w", "uid": "w-uid"}})
        launched(job, server)
        assert server.get(path(job))["metadata"]["ownerReferences"] == expected


def test_a_job_has_its_owner_although_the_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its owner it outlives a launcher that vanishes."""
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    job = a_job(keep="always")
    server = operated(job)
    server.put(PODS, {"metadata": {"name": "step", "uid": "step-uid"}})
    busy = Refused(503, "ServiceUnavailable", "starting")
    server.fail(lambda request: request.path == f"{PODS}/step", busy, times=1)
    launched(job, server)
    (owner,) = server.get(path(job))["metadata"]["ownerReferences"]
    assert owner["uid"] == "step-uid"
