"""A pod as the API server shows it early, late, or half: what it is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_samples import a_job, a_pod, ended

from ddpipe.jobs.replicas import replica_of
from ddpipe.jobs.status import Replica, Stage, torch_error, true_conditions
from ddpipe.launching.diagnosis import how

JOB = a_job()
GOING = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


def replica(**changes: Any) -> Replica:
    return replica_of(a_pod(JOB, **changes), "worker-0", "pytorch")


def test_a_new_pod_waits_for_a_node() -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "pytorch"}]}}
    found = replica_of(pod, "worker-0", "pytorch")
    assert (found.stage, found.waiting, found.restarts, found.memory) == (Stage.SCHEDULED, "", 0, "")
    assert (found.over, found.has_begun, found.has_failed, found.ending) == (False, False, False, None)


@pytest.mark.parametrize(
    ("pod", "stage"),
    [
        ({"phase": "Pending", "node": "", "state": {}}, Stage.SCHEDULED),
        ({"phase": "Pending", "state": {"waiting": {"reason": "ContainerCreating"}}}, Stage.PULLED),
        ({"phase": "Pending", "state": {"waiting": {"reason": "ErrImagePull"}}}, Stage.PULLED),
        ({"phase": "Pending", "state": {"waiting": {"reason": "RunContainerError"}}}, Stage.RUNNING),
        ({"phase": "Running"}, Stage.FINISHED),
        ({"phase": "Running", "state": ended(1)}, Stage.FINISHED),
        ({"phase": "Failed", "state": {}}, Stage.FINISHED),
        ({"phase": "Succeeded", "state": {}}, Stage.FINISHED),
    ],
)
def test_a_pod_waits_for_what_it_has_not_reached_yet(pod: dict[str, Any], stage: Stage) -> None:
    assert replica(**pod).stage is stage


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ({"reason": "ErrImagePull", "message": "no such image"}, "ErrImagePull: no such image"),
        ({"reason": "ContainerCreating"}, "ContainerCreating"),
        ({"reason": "ContainerCreating", "message": ""}, "ContainerCreating"),
        ({}, ""),
    ],
)
def test_the_reason_why_a_pod_waits_is_shown_if_known(reported: dict[str, str], words: str) -> None:
    assert replica(phase="Pending", state={"waiting": reported}).waiting == words
    scheduler = {"conditions": [{"type": "PodScheduled", "status": "False", **reported}]}
    assert replica(phase="Pending", node="", status=scheduler).waiting == words


def test_a_container_without_a_status_waits_without_a_reason() -> None:
    unknown = {"phase": "Pending", "containerStatuses": [{"name": "pytorch", "restartCount": 0}]}
    assert replica(status=unknown).waiting == ""


def test_another_container_of_the_pod_is_not_the_one_that_trains() -> None:
    helper = {"name": "helper", "restartCount": 5, "state": ended(1)}
    pod = a_pod(JOB)
    pod["status"]["containerStatuses"].insert(0, helper)
    pod["spec"]["containers"].insert(0, {"name": "helper", "resources": {"limits": {"memory": "1Gi"}}})
    found = replica_of(pod, "worker-0", "pytorch")
    assert (found.restarts, found.ending, found.memory) == (0, None, "64Mi")


def test_an_end_without_words_or_time_is_a_failure_all_the_same() -> None:
    found = replica(phase="Failed", state={"terminated": {"exitCode": 3}})
    assert found.has_failed
    assert found.ending is not None
    assert (found.ending.code, found.ending.reason, found.ending.message, found.ending.finished) == (
        3,
        "",
        "",
        "",
    )


def test_a_container_that_succeeded_after_a_restart_is_fine() -> None:
    again = {"restartCount": 1, "lastState": ended(1)}
    assert replica(container=again, state={"running": {}}).failure is not None
    assert replica(phase="Succeeded", container=again, state=ended(0)).failure is None


def test_a_disruption_is_reported_in_its_own_words() -> None:
    words = {"reason": "DeletionByTaintManager", "message": "node unreachable"}
    disrupted = {"conditions": [{"type": "DisruptionTarget", "status": "True", **words}]}
    found = replica(phase="Failed", status=disrupted)
    assert found.removed == "its pod was removed (DeletionByTaintManager: node unreachable)"


def test_a_disruption_that_was_called_off_is_none() -> None:
    disrupted = {"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "Preempted"}]}
    assert not replica(status=disrupted).removed


@pytest.mark.parametrize("state", [{"running": {}}, {"terminated": {"exitCode": 143}}])
def test_a_pod_whose_end_has_no_time_was_deleted_before_it(state: dict[str, Any]) -> None:
    found = replica(state=state, metadata=GOING)
    assert found.removed == "its pod was deleted"
    assert found.removed_at == 1767225610.0, "when it was asked for: the grace's end less the grace"


def test_a_pod_without_a_time_to_go_was_asked_to_go_at_once() -> None:
    assert replica(metadata={"deletionTimestamp": GOING["deletionTimestamp"]}).removed_at == 1767225640.0
    assert replica().removed_at == 0


@pytest.mark.parametrize(
    ("message", "text", "time"),
    [
        (json.dumps({"message": {"message": "E: bad", "extraInfo": {"timestamp": "7"}}}), "E: bad", 7.0),
        (json.dumps({"message": "E: bad"}), "E: bad", None),
        (json.dumps({"message": {"message": "E: bad"}}), '{"message": {"message": "E: bad"}}', None),
        ("last words", "last words", None),
        ("7", "7", None),
        ("[" * 9999, "[" * 9999, None),
        (json.dumps({"message": {"message": "E: bad", "extraInfo": {"timestamp": "inf"}}}), "E: bad", None),
    ],
)
def test_a_torch_error_file_is_read_other_text_is_kept(message: str, text: str, time: float | None) -> None:
    assert torch_error(message) == (text, time)


def test_only_conditions_that_hold_count_and_an_object_may_have_none() -> None:
    conditions = [{"type": "Created", "status": "True"}, {"type": "Running", "status": "False"}]
    assert true_conditions({"status": {"conditions": conditions}}) == ["Created"]
    assert true_conditions({"status": {"conditions": None}}) == []
    assert true_conditions({}) == []


def beside(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "pytorch", "state": ended(0)}, {"name": "proxy", **state}]}


def test_a_sidecar_that_fails_is_named_as_the_cause() -> None:
    found = replica(phase="Failed", status=beside(state=ended(3)))
    assert found.ending
    assert (found.ending.container, found.ending.code, found.container) == ("proxy", 3, "pytorch")
    assert how(found) == "its container proxy: exit code 3"


@pytest.mark.parametrize(("policy", "stage"), [("Never", Stage.FINISHED), ("OnFailure", Stage.PULLED)])
def test_a_pod_whose_init_container_failed_for_good_has_a_log(policy: str, stage: Stage) -> None:
    """Its phase is Pending for a moment more."""
    pod = a_pod(JOB, phase="Pending", state={"waiting": {"reason": "PodInitializing"}})
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", "state": ended(4)}]
    pod["spec"]["restartPolicy"] = policy
    assert replica_of(pod, "worker-0", "pytorch").stage is stage


def test_the_limit_of_the_container_that_was_killed_is_named() -> None:
    pod = a_pod(JOB, phase="Failed", status=beside(state=ended(137, reason="OOMKilled")))
    pod["spec"]["containers"].append({"name": "proxy", "resources": {"limits": {"memory": "1Mi"}}})
    assert "its container proxy: out of memory, killed at its limit of 1Mi" in how(
        replica_of(pod, "", "pytorch")
    )


def test_a_rank_has_succeeded_though_a_sidecar_still_runs() -> None:
    found = replica(status=beside(state={"running": {}}))
    assert (found.beside, found.has_succeeded, found.over) == ("proxy", True, False)


@pytest.mark.parametrize(("phase", "part"), [("Failed", "state"), ("Pending", "lastState")])
def test_an_init_container_that_fails_is_named_as_the_cause(phase: str, part: str) -> None:
    status = {"initContainerStatuses": [{"name": "fetch", part: ended(4)}]}
    found = replica(phase=phase, status=status, state={"waiting": {"reason": "PodInitializing"}})
    assert how(found) == "its container fetch: exit code 4"
    assert found.container == "fetch"


@pytest.mark.parametrize(
    "container",
    [
        {"state": ended(7, at="2026-01-01T00:00:10Z")},
        {"state": ended(137, at="2026-01-01T00:00:10Z", reason="OOMKilled")},
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended(7)},
    ],
)
def test_a_container_that_ended_by_itself_was_not_deleted(container: dict[str, Any]) -> None:
    """Its pod's deletion was requested in the same second, or while it waited for its restart."""
    assert replica(container=container, metadata=GOING).removed == ""


def test_a_container_that_a_signal_ended_in_the_second_of_the_request_was_deleted() -> None:
    found = replica(state=ended(143, at="2026-01-01T00:00:10Z"), metadata=GOING)
    assert found.removed == "its pod was deleted"


@pytest.mark.parametrize("position", [0, 1])
def test_the_container_that_trains_is_found_after_a_webhook_renamed_it(position: int) -> None:
    """A webhook may also add containers, at any place."""
    pod = a_pod(JOB, state=ended(3))
    (spec,), (state,) = pod["spec"]["containers"], pod["status"]["containerStatuses"]
    spec |= {"name": "renamed", "env": [{"name": "DDPIPE_JOB", "value": JOB.name}]}
    state["name"] = "renamed"
    pod["spec"]["containers"].insert(position, {"name": "proxy"})
    pod["status"]["containerStatuses"].insert(position, {"name": "proxy", "state": {"running": {}}})
    found = replica_of(pod, "worker-0", "pytorch")
    assert (found.container, found.failure and found.failure.code) == ("renamed", 3)
    assert (found.memory, found.beside) == ("64Mi", "proxy")
