"""From what was seen to a message that a person can act on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from launch_samples import a_job, a_pod, an_object, ended
from torchrun_samples import report

from ddpipe.errors import (
    DdpipeError,
    DeadlineExceeded,
    OperatorSilent,
    Unschedulable,
)
from ddpipe.jobs.indexedjob import BACKEND as INDEXED_JOB
from ddpipe.jobs.pytorchjob import BACKEND, status
from ddpipe.jobs.replicas import replica_of
from ddpipe.jobs.status import JobStatus, Replica, Stage
from ddpipe.kube.api import Refused
from ddpipe.launching import diagnosis
from ddpipe.launching.advice import AGAIN, Cause
from ddpipe.launching.deadlines import Overdue
from ddpipe.launching.stalls import stalls_of, with_kill

JOB = a_job()


def replica(rank: str = "worker-0", phase: str = "Failed", **changes: Any) -> Replica:
    return replica_of(a_pod(JOB, rank, phase, **changes), rank, "pytorch")


def failure(*replicas: Replica, tail: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> DdpipeError:
    return diagnosis.failure(JOB, BACKEND, "it failed", replicas=replicas, tail=lambda _: tail, notes=notes)


def test_the_cause_of_two_removals_in_a_second_ended_first() -> None:
    """The operator takes the others away when the first is gone."""
    going = {"deletionTimestamp": "2026-01-01T00:00:39Z", "deletionGracePeriodSeconds": 30}
    first = replica("worker-1", state=ended(143, at="2026-01-01T00:00:09Z"), metadata=going)
    for state in ({"running": {}}, ended(143, at="2026-01-01T00:00:10Z")):
        other = replica("worker-0", "Running", state=state, metadata=going)
        assert failure(other, first).which.startswith("worker-1 of")


@pytest.mark.parametrize("asked", ["2026-01-01T00:00:39Z", "2026-01-01T00:00:45Z"])
@pytest.mark.parametrize("state", [{"running": {}}, ended(143, at="2026-01-01T00:00:45Z")])
def test_a_pod_removed_after_a_failure_is_not_its_cause(asked: str, state: dict[str, Any]) -> None:
    going = {"deletionTimestamp": asked, "deletionGracePeriodSeconds": 30}
    tidied = replica("worker-0", "Running", state=state, metadata=going)
    error = failure(tidied, replica("worker-1", state=ended(1, at="2026-01-01T00:00:09Z")))
    assert error.which.startswith("worker-1 of")
    assert "deleted" not in error.seen


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Unhealthy", "Liveness probe failed: no heartbeat"),
        ("Unhealthy", "Startup probe failed: no heartbeat"),
        ("FailedPostStartHook", "PostStartHook failed"),
    ],
)
def test_the_probe_or_hook_for_which_a_kubelet_kills_is_named(reason: str, message: str) -> None:
    event = {"involvedObject": {"uid": "worker-0-uid"}, "reason": reason, "message": message}
    seen = failure(with_kill(replica(state=ended(137)), [event])).seen
    assert seen == f"killed by SIGKILL (exit code 137) by its kubelet: {message}"


@pytest.mark.parametrize(
    ("code", "uid", "message"),
    [
        (1, "worker-0-uid", "Liveness probe failed: no heartbeat"),
        (137, "another-uid", "Liveness probe failed: no heartbeat"),
        (137, "worker-0-uid", "Readiness probe failed: no heartbeat"),
    ],
)
def test_other_events_are_no_reason_for_a_kill(code: int, uid: str, message: str) -> None:
    event = {"involvedObject": {"uid": uid}, "reason": "Unhealthy", "message": message}
    killed = replica(state=ended(code))
    assert with_kill(killed, [event]) == killed


def test_of_several_processes_in_a_pod_the_killed_one_is_named() -> None:
    error = failure(replica(state=ended(1)), tail=tuple(report({0: -15, 1: -9}, first=1).splitlines()))
    assert "exit code 1; rank 1 in it was killed by SIGKILL" in error.seen


def test_the_first_to_fail_is_the_cause_and_the_others_follow() -> None:
    late = replica("worker-0", state=ended(1, at="2026-01-01T00:00:12Z"))
    early = replica("worker-1", state=ended(3, at="2026-01-01T00:00:09Z"))
    error = failure(late, early)
    assert error.which.startswith("worker-1 of PyTorchJob")
    assert "exit code 3; then worker-0: exit code 1" in error.seen


def test_of_two_in_one_second_the_killed_one_is_the_cause() -> None:
    error = failure(replica("worker-0", state=ended(1)), replica("worker-1", state=ended(137)))
    assert error.which.startswith("worker-1")
    assert "killed by SIGKILL (exit code 137)" in error.seen


def test_torch_s_error_file_has_the_time_and_the_message() -> None:
    message = {"message": {"message": "RuntimeError: bad", "extraInfo": {"timestamp": "1767225601"}}}
    early = replica("worker-1", state=ended(1, at="2026-01-01T00:00:30Z", message=json.dumps(message)))
    error = failure(replica("worker-0", state=ended(1, at="2026-01-01T00:00:20Z")), early, tail=("a", "b"))
    assert error.which.startswith("worker-1")
    assert error.seen.endswith("RuntimeError: bad")


def test_out_of_memory_names_the_limit_and_the_way_out() -> None:
    error = failure(replica(state=ended(137, reason="OOMKilled")))
    assert "killed at its limit of 64Mi" in error.seen
    assert "more than 64Mi" in error.do


def test_a_command_that_does_not_exist_is_no_failed_training() -> None:
    error = failure(replica(state=ended(128, reason="StartError", message="exec: nope: not found")))
    assert "its command cannot be started: exec: nope" in error.seen


def test_a_command_that_cannot_be_started_is_what_to_correct() -> None:
    job = a_job(command=["python", "trian.py"])
    for reason in ("StartError", "ContainerCannotRun"):
        broken = replica(state=ended(128, reason=reason, message="not found"))
        error = diagnosis.failure(job, BACKEND, "", replicas=[broken], tail=lambda _: (), notes=())
        assert error.seen.startswith("its command cannot be started: not found")
        assert error.do.endswith("python trian.py")


def test_a_pod_that_was_taken_away_could_have_come_back_by_itself() -> None:
    assert "`restart` ExitCode" in failure(replica(status={"reason": "Evicted"})).do


@pytest.mark.parametrize("on", [{"restart": "ExitCode"}, {"min_nodes": 1}])
def test_a_setting_that_is_on_is_not_recommended(on: dict[str, Any]) -> None:
    lost = replica(status={"reason": "Evicted"})
    error = diagnosis.failure(a_job(**on), BACKEND, "", replicas=[lost], tail=lambda _: (), notes=())
    assert "`restart` ExitCode" not in error.do
    assert "Increase `max_restarts` (now 3)" in error.do


def test_of_two_ends_the_one_that_has_a_time_came_first() -> None:
    timeless = replica("worker-0", state={"terminated": {"exitCode": 3}})
    error = failure(timeless, replica("worker-1", state=ended(1)))
    assert error.which.startswith("worker-1")
    assert "then worker-0: exit code 3" in error.seen


def test_a_failure_is_the_cause_of_a_removal_in_its_second() -> None:
    asked = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}
    removed = replica("worker-0", "Running", state={"running": {}}, metadata=asked)
    error = failure(removed, replica("worker-1", state=ended(1, at="2026-01-01T00:00:10Z")))
    assert error.which.startswith("worker-1")


def test_the_last_lines_of_the_log_are_shown() -> None:
    assert failure(replica(state=ended(1)), tail=("one", "two")).seen.endswith("    one\n    two")


def test_without_a_log_the_termination_message_is_shown() -> None:
    assert failure(replica(state=ended(1, message="last words"))).seen.endswith("    last words")


def test_an_evicted_pod_differs_from_a_failed_training() -> None:
    error = failure(replica(status={"reason": "Evicted", "message": "node was low on memory"}, state={}))
    assert "removed (Evicted: node was low on memory)" in error.seen


def test_a_deleted_pod_differs_from_one_that_is_cleaned_up() -> None:
    asked = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}
    mourned = replica(metadata=asked, state=ended(143, at="2026-01-01T00:00:11Z"))
    tidied = replica(metadata=asked, state=ended(143, at="2026-01-01T00:00:05Z"))
    assert diagnosis.how(mourned) == "its pod was deleted; killed by SIGTERM (exit code 143)"
    assert diagnosis.how(tidied) == "killed by SIGTERM (exit code 143)"


def test_restarts_are_reported() -> None:
    assert "restarted 2 times" in failure(replica(state=ended(1), container={"restartCount": 2})).seen


def test_a_failure_without_a_failed_pod_says_what_is_known() -> None:
    assert failure(notes=("worker-1 is replaced: …",)).seen == "it failed; worker-1 is replaced: …"


def late(found: JobStatus) -> DdpipeError:
    return diagnosis.late(JOB, BACKEND, found, Overdue(found.stage, 5))


def test_each_stage_has_its_own_deadline_and_error() -> None:
    silent = status(JOB, an_object(JOB), [])
    assert isinstance(late(silent), OperatorSilent)
    scheduling = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
        ]
    }
    unscheduled = status(
        JOB,
        an_object(JOB, "Created"),
        [a_pod(JOB, "worker-0", "Pending", node="", state={}, status=scheduling)],
    )
    error = late(unscheduled)
    assert isinstance(error, Unschedulable)
    assert "no GPU" in error.seen


def test_a_signal_is_named_and_other_codes_are_numbers() -> None:
    said = {code: failure(replica(state=ended(code))).seen for code in (127, 128, 129, 139, 192, 193, 255)}
    assert said[127] == "exit code 127"
    assert said[128] == "exit code 128"
    assert said[129] == "killed by SIGHUP (exit code 129)"
    assert said[139] == "killed by SIGSEGV (exit code 139)"
    assert "killed by" in said[192]
    assert said[193] == "exit code 193"
    assert said[255] == "exit code 255"


def test_a_container_that_its_node_has_forgotten_has_no_exit_code() -> None:
    said = failure(replica(state=ended(137, reason="ContainerStatusUnknown", message="not found"))).seen
    assert said == "its node does not know what became of its container"


def test_of_many_last_lines_the_last_are_shown() -> None:
    seen = failure(replica(state=ended(1)), tail=tuple(f"line {number}" for number in range(1, 21))).seen
    assert seen.splitlines()[2] == "    line 9"
    assert seen.splitlines()[-1] == "    line 20"


def test_pods_with_one_end_are_counted_in_the_cause() -> None:
    first = replica("worker-17", state=ended(137))
    later = [replica(f"worker-{rank}", state=ended(1, at="2026-01-01T00:00:12Z")) for rank in range(20, 520)]
    error = failure(*later, first)
    assert error.which == f"worker-17 of PyTorchJob team/{JOB.name} (node n1)"
    assert error.seen == (
        "killed by SIGKILL (exit code 137); "
        "then 500 pods (worker-20, worker-21, worker-22, worker-23, worker-24, …): exit code 1"
    )


def test_of_several_causes_three_more_are_reported() -> None:
    failed = [replica(f"worker-{rank}", state=ended(rank + 1)) for rank in range(6)]
    seen = failure(*failed).seen
    assert seen.count("then ") == 3


NOT_CREATED = {"phase": "Pending", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}


@pytest.mark.parametrize(
    ("pod", "words", "option"),
    [
        ({"phase": "Pending", "state": {}}, "not all images were ready", "pulled"),
        (NOT_CREATED, "not all containers were ready", "running"),
        ({}, "training did not end in time", "finished"),
    ],
)
def test_each_later_stage_has_its_own_words_and_deadline(
    pod: dict[str, Any], words: str, option: str
) -> None:
    pods = [a_pod(JOB, **pod), a_pod(JOB, "worker-1")]
    error = late(status(JOB, an_object(JOB, "Created"), pods))
    assert type(error) is DeadlineExceeded
    assert words in str(error)
    assert f"ncrease {option} in `deadlines`" in error.do


def test_pods_that_are_late_without_a_word_are_counted() -> None:
    error = late(status(JOB, an_object(JOB, "Created"), [a_pod(JOB)]))
    assert error.seen == "after 5 s: 1 of 2 pods exist"


def test_of_pods_that_are_late_three_are_named_and_the_latest_warning() -> None:
    job = a_job(nodes=4)
    state = {"waiting": {"reason": "ContainerCreating"}}
    pods = [a_pod(job, f"worker-{rank}", "Pending", state=state) for rank in range(4)]
    found = status(job, an_object(job, "Created"), pods)
    waits = "; ".join(f"worker-{rank}: ContainerCreating" for rank in range(3))
    assert diagnosis.late(job, BACKEND, found, Overdue(Stage.PULLED, 5), "w", 4).seen == (
        f"after 5 s: {waits}; the latest warning is w"
    )
    assert diagnosis.late(job, BACKEND, found, Overdue(Stage.PULLED, 5)).seen == f"after 5 s: {waits}"


@pytest.mark.parametrize(
    ("stage", "wanted", "kind", "seen"),
    [
        (Stage.RECONCILED, 2, OperatorSilent, "nothing happened to it for 5 s"),
        (Stage.RECONCILED, 1, OperatorSilent, "after 5 s: it asks for 1 of 2 pods"),
        (Stage.SCHEDULED, 1, OperatorSilent, "after 5 s: it asks for 1 of 2 pods"),
        (Stage.SCHEDULED, 2, Unschedulable, "after 5 s: 0 of 2 pods exist"),
        (Stage.PULLED, 1, DeadlineExceeded, "after 5 s: 0 of 2 pods exist"),
        (Stage.FINISHED, 1, DeadlineExceeded, "still running after 5 s; it was stopped"),
    ],
)
def test_fewer_pods_than_the_job_has_explain_a_late_start_only(
    stage: Stage, wanted: int, kind: type[DdpipeError], seen: str
) -> None:
    error = late_at(stage, wanted)
    assert (type(error), error.seen) == (kind, seen)


def test_ends_are_summed_up_with_at_most_five_ranks() -> None:
    def pods(count: int, code: int) -> list[Replica]:
        return [replica(f"worker-{rank}", state=ended(code)) for rank in range(count)]

    five = "worker-0, worker-1, worker-2, worker-3, worker-4"
    said = [
        diagnosis.summaries(some, "has ended", "have ended")
        for some in (pods(1, 3), pods(5, 3), pods(6, 3), [*pods(1, 3), *pods(2, 4)])
    ]
    assert said == [
        ["worker-0 has ended: exit code 3"],
        [f"5 pods have ended ({five}): exit code 3"],
        [f"6 pods have ended ({five}, …): exit code 3"],
        ["worker-0 has ended: exit code 3", "2 pods have ended (worker-0, worker-1): exit code 4"],
    ]
    nowhere = replica("worker-1", node="", state=ended(3))
    assert diagnosis.summaries([*pods(1, 3), nowhere], "", "", on_nodes=True) == [
        "2 pods (worker-0 on n1, worker-1): exit code 3"
    ]


def test_a_pod_that_succeeded_was_not_taken_away() -> None:
    disruption = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Evicted"}]}
    done = replica("worker-0", "Succeeded", state=ended(0), status=disruption)
    assert not done.has_failed
    assert replica("worker-0", "Failed", state=ended(143), status=disruption).removed


def test_a_container_that_waits_after_a_restart_is_running() -> None:
    again = a_pod(JOB, state={"waiting": {"reason": "CrashLoopBackOff"}}, container={"restartCount": 1})
    assert status(JOB, an_object(JOB, "Running"), [again, a_pod(JOB, "worker-1")]).stage is Stage.FINISHED


def stalled(reason: str = "", message: str = "m", event: str = "") -> DdpipeError:
    """The error of a pod that waits for this reason, or of an event about the job's pods."""
    state = {"waiting": {"reason": reason, "message": message}}
    pods = [] if event else [a_pod(JOB, "worker-0", "Pending", state=state), a_pod(JOB, "worker-1")]
    refusal = {"involvedObject": {}, "metadata": {}, "reason": "FailedCreatePod", "message": event}
    found = an_object(JOB, "Created")
    return next(iter(stalls_of(JOB, BACKEND, status(JOB, found, pods), found, [refusal]))).error(0)


def late_at(stage: Stage, wanted: int = 2) -> DdpipeError:
    found = status(JOB, an_object(JOB, "Created"), [])
    return diagnosis.late(JOB, BACKEND, found, Overdue(stage, 5), wanted=wanted)


def unscheduled(reason: str, message: str) -> DdpipeError:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    pods = [
        a_pod(JOB, rank, "Pending", node="", state={}, status={"conditions": [condition]}) for rank in RANKS
    ]
    return late(status(JOB, an_object(JOB, "Created"), pods))


RANKS = ("worker-0", "worker-1")


def webhook_silent() -> DdpipeError:
    error = diagnosis.webhook_silent(JOB, BACKEND, Refused(500, "", "failed calling webhook of.others"))
    assert error is not None
    return error


def an_init_container_failed() -> DdpipeError:
    init = [{"name": "fetch", "state": ended(3)}]
    return failure(replica(state={"waiting": {}}, status={"initContainerStatuses": init}))


def a_probe_failed() -> DdpipeError:
    message = "Liveness probe failed: no heartbeat"
    event = {"involvedObject": {"uid": "worker-0-uid"}, "reason": "Unhealthy", "message": message}
    return failure(with_kill(replica(state=ended(137)), [event]))


CASES: dict[Cause, Callable[[], DdpipeError]] = {
    Cause.OPERATOR_SILENT: lambda: late_at(Stage.RECONCILED),
    Cause.WEBHOOK_SILENT: webhook_silent,
    Cause.NOT_CREATED: lambda: late_at(Stage.SCHEDULED, wanted=0),
    Cause.NOT_SCHEDULED: lambda: late_at(Stage.SCHEDULED),
    Cause.GATED: lambda: unscheduled("SchedulingGated", "Scheduling is blocked due to gates"),
    Cause.UNBOUND: lambda: unscheduled("Unschedulable", "pod has unbound immediate PersistentVolumeClaims"),
    Cause.NOT_PULLED: lambda: late_at(Stage.PULLED),
    Cause.NOT_STARTED: lambda: late_at(Stage.RUNNING),
    Cause.TOO_LONG: lambda: late_at(Stage.FINISHED),
    Cause.HUNG: lambda: diagnosis.hung(JOB, BACKEND, 600),
    Cause.JOB_DELETED: lambda: diagnosis.deleted(JOB, BACKEND),
    Cause.POD_LOST: lambda: failure(replica(status={"reason": "Evicted"})),
    Cause.OUT_OF_MEMORY: lambda: failure(replica(state=ended(137, reason="OOMKilled"))),
    Cause.NO_COMMAND: lambda: failure(replica(state=ended(127))),
    Cause.STOPPED: lambda: failure(replica(state=ended(143))),
    Cause.SHOT: lambda: failure(replica(state=ended(137))),
    Cause.CRASHED: lambda: failure(replica(state=ended(139))),
    Cause.EXITED: lambda: failure(replica(state=ended(1))),
    Cause.HOOK: a_probe_failed,
    Cause.ANOTHER_CONTAINER: an_init_container_failed,
    Cause.UNKNOWN: failure,
    Cause.IMAGE: lambda: stalled("ErrImagePull"),
    Cause.CONTAINER: lambda: stalled("CreateContainerError"),
    Cause.MISSING: lambda: stalled("ContainerCreating", 'secret "nope" not found'),
    Cause.QUOTA: lambda: stalled(event="exceeded quota: small"),
    Cause.POLICY: lambda: stalled(event='violates PodSecurity "restricted"'),
    Cause.WEBHOOK: lambda: stalled(event="admission webhook denied the request"),
    Cause.OLD_POD: lambda: stalled(event="object is being deleted: pods exist"),
}
OF_OTHERS = {Cause.NO_OUTPUT, Cause.UNFIT}
"""Tested with the launcher and with preflight."""
MAY_PASS = {Cause.OPERATOR_SILENT, Cause.WEBHOOK_SILENT, Cause.JOB_DELETED, Cause.POD_LOST, Cause.STOPPED}
MAY_PASS |= {Cause.SHOT}


@pytest.mark.parametrize("cause", CASES, ids=lambda cause: cause.name)
def test_every_cause_has_its_advice(cause: Cause) -> None:
    error = CASES[cause]()
    print(f"{cause.name}: {error}")  # noqa: T201 - pytest -s shows what a user reads
    assert error.do.startswith(cause.partition("{")[0])


def test_no_cause_is_without_advice_and_only_what_may_pass_is_tried_again() -> None:
    assert set(Cause) == CASES.keys() | OF_OTHERS
    assert {cause for cause in Cause if AGAIN in cause.lower()} == MAY_PASS


def test_a_job_that_asks_for_fewer_pods_need_not_request_less() -> None:
    """Parallelism 0 is somebody's choice: no node is full."""
    job = a_job(backend="indexedjob")
    found = {**INDEXED_JOB.manifest(job, None), "status": {"startTime": "2026-01-01T00:00:00Z"}}
    found["spec"]["parallelism"] = 0
    waiting = INDEXED_JOB.status(job, found, [])
    overdue = Overdue(waiting.stage, 5)
    error = diagnosis.late(job, INDEXED_JOB, waiting, overdue, wanted=INDEXED_JOB.wanted(found))
    assert error.seen == "after 5 s: it asks for 0 of 2 pods"
    assert error.do.startswith("Find out who asks for fewer pods")
