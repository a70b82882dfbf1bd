"""Jobs that were left behind: whose they are, whether their run is over, and what could not be removed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from click.testing import CliRunner
from fake_api import FakeApiServer, Request
from launch_samples import JOBS, PODS, a_job, a_pod, a_server, an_object

from ddpipe.__main__ import cli
from ddpipe.commands import jobs
from ddpipe.errors import ClusterUnreachable, NotRemoved
from ddpipe.jobs import experiment
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.jobs.pytorchjob import RESOURCE
from ddpipe.kube import resources
from ddpipe.kube.api import ApiError, Refused, Unanswered
from ddpipe.launching import ownership
from ddpipe.launching.ownership import list_jobs, sweep, with_progress


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_PATIENCE", 0.2)


def orphan(job: TrainingJob, *conditions: str) -> dict[str, Any]:
    found = an_object(job, *conditions)
    found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "step", "uid": "step-uid"}]
    return found


def step(phase: str, uid: str = "step-uid") -> dict[str, Any]:
    return {"metadata": {"name": "step", "uid": uid}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("phase", "conditions", "keep", "swept"),
    [
        ("Failed", ["Running"], "never", True),
        ("Succeeded", ["Running"], "never", True),
        ("Running", ["Running"], "never", False),
        ("Failed", ["Failed"], "failed", False),
        ("Failed", ["Succeeded"], "failed", True),
        ("Failed", ["Succeeded"], "always", False),
        ("Failed", ["Running"], "always", True),
        ("Failed", ["Succeeded"], "a policy of a newer ddpipe", False),
        ("Failed", ["Succeeded"], "", True),
    ],
)
def test_jobs_of_runs_that_are_over_are_swept(
    phase: str,
    conditions: list[str],
    keep: str,
    swept: bool,
) -> None:
    job = a_job(keep=keep)
    found = orphan(job, *conditions)
    if not keep:
        del found["metadata"]["annotations"]["ddpipe.dev/keep"]
    server = a_server(found)
    server.put(PODS, step(phase))
    assert [found.name for found in sweep(server, "team").removed] == ([job.name] if swept else [])
    assert (JOBS + "/" + job.name in server._objects) is not swept


def test_a_run_that_is_gone_is_over() -> None:
    job = a_job()
    server = a_server(orphan(job, "Running"))
    assert list_jobs(server, "team")[0].run_over is True
    server.fail(lambda request: request.path == f"{PODS}/step", Refused(403, "Forbidden", "no"))
    assert list_jobs(server, "team")[0].run_over is None
    assert sweep(server, "team").removed == []


def test_another_object_of_the_run_s_name_is_not_it() -> None:
    server = a_server(orphan(a_job(), "Running"))
    server.put(PODS, step("Running", uid="another"))
    assert list_jobs(server, "team")[0].run_over is True


def test_a_job_without_an_owner_is_not_judged() -> None:
    server = a_server(an_object(a_job(), "Running"))
    assert list_jobs(server, "team")[0].run_over is None


def test_a_named_run_is_swept_in_any_state() -> None:
    server = a_server(an_object(a_job(), "Running"))
    assert sweep(server, "team", run="another").removed == []
    assert len(sweep(server, "team", run="run-1").removed) == 1


def test_a_job_that_is_to_be_kept_outlives_its_run() -> None:
    job = a_job(keep="failed")
    assert sweep(a_server(an_object(job, "Failed")), "team", run="run-1").removed == []
    assert len(sweep(a_server(an_object(job, "Running")), "team", run="run-1").removed) == 1


def test_other_pipelines_and_other_users_jobs_are_not_ours() -> None:
    server = a_server(an_object(a_job()))
    unmarked = {"metadata": {"name": "theirs", "namespace": "team"}, "spec": {}}
    server.put(JOBS, unmarked)
    copied = an_object(a_job())
    server.put(JOBS, {**copied, "metadata": {**copied["metadata"], "name": "copied", "uid": "copied"}})
    assert [job.name for job in list_jobs(server, "team")] == [a_job().name]
    assert list_jobs(server, "team", pipeline="another") == []
    assert len(list_jobs(server, "team", pipeline="digits")) == 1


def test_the_latest_condition_is_a_job_s_state() -> None:
    states = [
        list_jobs(a_server(an_object(a_job(), *conditions)), "team")[0].state
        for conditions in ([], ["Created", "Running"], ["Created", "Running=False", "Failed"])
    ]
    assert states == ["Active", "Running", "Failed"]


def test_a_cluster_without_such_jobs_has_none() -> None:
    assert list_jobs(FakeApiServer(), "team") == []


def two_orphans() -> tuple[FakeApiServer, str, str]:
    """A server with two jobs of one run that is over."""
    jobs = [a_job(owner=Owner(pipeline="digits", run_id="run-1", step=name)) for name in ("one", "two")]
    server = a_server()
    for job in jobs:
        found = orphan(job, "Running")
        found["metadata"]["uid"] = job.name
        server.put(JOBS, found)
    return server, jobs[0].name, jobs[1].name


def deletes(name: str) -> Any:
    def which(request: Request) -> bool:
        return request.method == "DELETE" and request.path == RESOURCE.path("team", name)

    return which


@pytest.mark.parametrize(
    "error",
    [Refused(429, "TooManyRequests", "busy"), Refused(500, "", "etcd"), Refused(403, "Forbidden", "no")],
)
def test_a_job_that_cannot_be_deleted_is_reported(error: ApiError) -> None:
    server, one, two = two_orphans()
    server.fail(deletes(one), error)
    said: list[str] = []
    swept = sweep(server, "team", run="run-1", say=said.append)
    assert [job.name for job in swept.removed] == [two]
    assert f"could not remove PyTorchJob team/{one}, whose run run-1 is over: {error}" in said[0]
    assert said[1] == f"removed PyTorchJob team/{two}: run run-1 is over"
    with pytest.raises(NotRemoved, match=f"1 of 2: 1 problem:\n  - PyTorchJob team/{one}"):
        swept.complete()


def test_a_server_that_is_busy_for_a_moment_is_asked_again() -> None:
    server, one, two = two_orphans()
    server.fail(deletes(one), Refused(429, "TooManyRequests", "busy"), times=1)
    assert {job.name for job in sweep(server, "team", run="run-1").complete()} == {one, two}


def test_two_sweeps_at_the_same_time_are_fine() -> None:
    server, one, two = two_orphans()
    server.fail(deletes(one), Refused(404, "NotFound", "gone"))
    server.fail(deletes(two), Refused(409, "Conflict", "another uid"))
    assert len(sweep(server, "team", run="run-1").complete()) == 2


def test_a_clean_up_that_fails_is_reported_but_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the run's last step, and must not take the place of how the run ended."""
    server, one, two = two_orphans()
    server.fail(deletes(one), Refused(403, "Forbidden", "no"))
    monkeypatch.setattr(jobs, "connect", lambda: server)
    command = ["jobs", "clean-up", "--pipeline", "digits", "--run-id", "run-1"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert f"could not remove PyTorchJob team/{one}" in done.stderr
    assert f"1 removed\n{two}" in done.stdout
    server.fail(lambda request: request.path == JOBS, Refused(403, "Forbidden", "is forbidden: User"))
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "the jobs of the run could not be removed" in done.stderr


def test_a_sweep_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server, one, _ = two_orphans()
    server.fail(deletes(one), Refused(403, "Forbidden", "no"))
    monkeypatch.setattr(jobs, "connect", lambda: server)
    done = CliRunner().invoke(cli, ["jobs", "clean-up"])
    assert done.exit_code == NotRemoved.exit_code


def test_a_search_whose_run_is_over_is_swept() -> None:
    search = orphan(a_job(), "Created", "Running")
    search |= {"kind": experiment.RESOURCE.kind, "apiVersion": experiment.RESOURCE.api_version}
    server = a_server()
    server.serve(experiment.RESOURCE)
    server.put(experiment.RESOURCE.path("team"), search)
    (found,) = list_jobs(server, "team")
    assert (found.kind, found.state, found.run_over) == ("Experiment", "Running", True)
    assert [one.name for one in sweep(server, "team").removed] == [a_job().name]
    assert list_jobs(server, "team") == []


def test_kinds_that_may_not_be_listed_hide_no_others() -> None:
    server = a_server(orphan(a_job(), "Running"))
    server.serve(resources.JOBS)
    refusal = Refused(403, "Forbidden", "may not list")
    server.fail(lambda request: request.path == resources.JOBS.path("team"), refusal)
    assert [job.kind for job in list_jobs(server, "team")] == ["PyTorchJob"]
    server.fail(lambda request: request.path == JOBS, refusal)
    with pytest.raises(Refused, match="may not list"):
        list_jobs(server, "team")


def test_an_outage_is_no_empty_list() -> None:
    server = a_server()
    server.fail(lambda request: request.path == JOBS, Unanswered("refused"))
    with pytest.raises(Unanswered):
        list_jobs(server, "team")
    with pytest.raises(ClusterUnreachable):
        sweep(server, "team")


def many_jobs(count: int) -> FakeApiServer:
    """A server with jobs of as many runs, each a workflow; every second run is over."""
    server = a_server()
    server.know(WORKFLOWS)
    for number in range(count):
        job = a_job(owner=Owner(pipeline="digits", run_id=f"run-{number}", step="train"))
        labels = {"workflows.argoproj.io/completed": "true"} if number % 2 else {}
        workflow = server.put(
            WORKFLOWS, {"metadata": {"name": f"w-{number}", "labels": labels}, "status": {}}
        )
        found = an_object(job, "Running")
        owner = {"kind": "Workflow", "name": f"w-{number}", "uid": workflow["metadata"]["uid"]}
        found["metadata"] |= {"uid": job.name, "ownerReferences": [owner]}
        server.put(JOBS, found)
    return server


WORKFLOWS = resources.WORKFLOWS.path("team")


def test_a_sweep_among_200_runs_takes_a_few_requests() -> None:
    """Two hundred launchers that start at once each send this many."""
    server = many_jobs(200)
    listed = list_jobs(server, "team", pipeline="digits")
    assert sum(job.run_over is True for job in listed) == 100
    assert len([request for request in server.asked if request.method == "GET"]) <= 8


def test_a_list_of_jobs_shows_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job()
    server = a_server(an_object(job, "Running"))
    for rank in (1, 0):
        server.put(PODS, a_pod(job, f"worker-{rank}", phase="Running"))
    pod = f"{job.name}-worker-0"
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:40Z")
    server.logs[f"{PODS}/{pod}/log"] = [
        [f"{times[0]} step=1 of=10".encode(), f"{times[1]} step=3 of=10".encode()]
    ]
    server.time = datetime.fromisoformat(times[1]).timestamp()
    monkeypatch.setattr(jobs, "connect", lambda: server)
    shown = CliRunner().invoke(cli, ["jobs", "ls"], catch_exceptions=False).stdout
    assert shown.rstrip().endswith("30 %, 2 min 20 s left")
    server.logs.clear()
    found = json.loads(CliRunner().invoke(cli, ["jobs", "ls", "--json"], catch_exceptions=False).stdout)
    assert found["jobs"][0]["progress"] is None


def test_the_progress_of_the_newest_jobs_that_may_still_run_is_read() -> None:
    """Not that of jobs that have ended, and not that of searches, whose pods are others."""
    server = a_server()
    server.serve(experiment.RESOURCE)
    for second, condition in ((2, "Running"), (3, "Running"), (1, "Running"), (4, "Succeeded")):
        job = a_job(owner=Owner(pipeline="digits", run_id=f"run-{second}", step="train"))
        found = an_object(job, condition)
        found["metadata"] |= {"uid": f"uid-{second}", "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        server.put(JOBS, found)
        pod = server.put(PODS, a_pod(job))
        server.logs[f"{PODS}/{pod['metadata']['name']}/log"] = [[b"2026-01-01T00:00:00Z step=1 of=4"]]
    search = an_object(a_job(), "Running") | {"kind": "Experiment"}
    search["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    server.put(experiment.RESOURCE.path("team"), search)
    listed = with_progress(server, "team", list_jobs(server, "team"), most=2)
    assert [(job.owner.run_id, job.created[-3:-1], bool(job.progress)) for job in listed] == [
        ("run-2", "02", True),
        ("run-3", "03", True),
        ("run-1", "01", False),
        ("run-4", "04", False),
        ("run-1", "05", False),
    ]


def test_so_many_runs_are_looked_at_as_were_asked_for() -> None:
    """Those that are not are left for the next sweep."""
    server = a_server()
    for number in range(4):
        found = orphan(a_job(owner=Owner(pipeline="digits", run_id=f"run-{number}", step="train")))
        found["metadata"] |= {"uid": f"uid-{number}"}
        found["metadata"]["ownerReferences"][0]["uid"] = f"step-{number}"
        server.put(JOBS, found)
    known = [job.run_over for job in list_jobs(server, "team", most=3)]
    assert sorted(known, key=str) == [None, True, True, True]
    assert [len(sweep(server, "team", most=3).removed) for _ in range(3)] == [3, 1, 0]


def test_the_end_of_a_run_looks_at_its_own_jobs_only() -> None:
    server = many_jobs(200)
    assert [job.owner.run_id for job in sweep(server, "team", run="run-7").removed] == ["run-7"]
    assert not any(request.path.startswith(WORKFLOWS) for request in server.asked)
    (listed,) = (request for request in server.asked if request.path == JOBS)
    assert "ddpipe.dev/run=run-7" in listed.query["labelSelector"]


def test_a_run_whose_label_is_shortened_is_known_by_its_annotation() -> None:
    runs = ["r" * 70 + "1", "r" * 70 + "2"]
    server = a_server()
    for run in runs:
        job = a_job(owner=Owner(pipeline="digits", run_id=run, step="train"))
        found = an_object(job, "Running")
        found["metadata"]["uid"] = job.name
        server.put(JOBS, found)
    assert [job.owner.run_id for job in sweep(server, "team", run=runs[1]).removed] == [runs[1]]
