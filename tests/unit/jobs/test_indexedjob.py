"""A job as an Indexed Job, and an Indexed Job as a status."""

from __future__ import annotations

from typing import Any

import pytest
from launch_samples import UID, a_job, ended

from ddpipe.errors import ParameterError
from ddpipe.jobs.indexedjob import manifest, owns, phase, pod, services, status
from ddpipe.jobs.job import TrainingJob, owner_of
from ddpipe.jobs.options import Restart
from ddpipe.jobs.replicas import INDEX
from ddpipe.jobs.status import Phase, Stage


def spec_of(job: TrainingJob) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(job)["spec"]
    return spec


def environment_of(job: TrainingJob) -> dict[str, Any]:
    (container,) = pod(job)["spec"]["containers"]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def an_object(job: TrainingJob, *conditions: str, **spec: object) -> dict[str, Any]:
    """The job as the API server shows it; the controller has taken it up if it has any condition."""
    body = manifest(job)
    body["metadata"] |= {"uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"] |= spec
    reported = [{"type": kind, "status": "True", "message": f"it is {kind}"} for kind in conditions]
    body["status"] = {"conditions": reported, "startTime": "2026-01-01T00:00:00Z"} if reported else {}
    return body


def an_indexed_pod(
    index: int, phase: str = "Running", state: dict[str, Any] | None = None, *, created: int = 0
) -> dict[str, Any]:
    """A pod of the job, created in this second."""
    container = {"name": "pytorch", "restartCount": 0, "state": state or {"running": {}}}
    return {
        "metadata": {
            "name": f"train-{index}-{created}",
            "uid": f"{index}-{created}",
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            "annotations": {INDEX: str(index)},
            "ownerReferences": [{"uid": UID}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "pytorch"}]},
        "status": {"phase": phase, "containerStatuses": [container]},
    }


@pytest.mark.parametrize("nodes", [2, 3])
def test_every_pod_has_a_rank_and_meets_the_others_at_pod_0(nodes: int) -> None:
    job = a_job(nodes=nodes, processes=2)
    assert spec_of(job)["completionMode"] == "Indexed"
    assert (spec_of(job)["completions"], spec_of(job)["parallelism"]) == (nodes, nodes)
    environment = environment_of(job)
    assert environment["MASTER_ADDR"] == environment["PET_MASTER_ADDR"] == f"{job.name}-0.{job.name}"
    assert (
        environment["RANK"]
        == environment["PET_NODE_RANK"]
        == {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    )
    assert (environment["WORLD_SIZE"], environment["PET_NNODES"]) == (str(2 * nodes), str(nodes))
    assert environment["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(("gpus", "asked", "expected"), [(0, 0, "1"), (4, 0, "4"), (4, 2, "2")])
def test_a_pod_has_a_process_per_gpu_unless_requested_otherwise(gpus: int, asked: int, expected: str) -> None:
    environment = environment_of(a_job(nodes=2, gpus=gpus, processes=asked, cpu="8"))
    assert environment["PET_NPROC_PER_NODE"] == expected
    assert environment["WORLD_SIZE"] == str(2 * int(expected))
    assert environment["OMP_NUM_THREADS"] == str(8 // int(expected))


def test_the_pods_names_come_from_a_service_of_the_job_s_name() -> None:
    job = a_job()
    (owned,) = services(job)
    service = owned.manifest
    assert service["metadata"]["name"] == pod(job)["spec"]["subdomain"] == job.name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pod(job)["metadata"]["labels"].items()


def test_a_pod_alone_is_a_plain_job_that_needs_nothing_beside_it() -> None:
    job = a_job(nodes=1)
    assert services(job) == ()
    assert environment_of(job)["MASTER_ADDR"] == "localhost"
    assert "subdomain" not in pod(job)["spec"]


def test_a_job_has_an_owner_and_expires_after_its_end() -> None:
    assert owner_of(manifest(a_job())) == a_job().owner
    assert spec_of(a_job(finished_ttl=60))["ttlSecondsAfterFinished"] == 60


def test_a_queue_admits_the_whole_job_by_its_label() -> None:
    assert manifest(a_job(queue="q"))["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"


def test_the_first_failure_of_any_pod_is_the_job_s() -> None:
    spec = spec_of(a_job(restart=Restart.NEVER))
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_containers_restart_in_place_as_often_as_the_whole_group_may() -> None:
    spec = spec_of(a_job(nodes=3, restart=Restart.ON_FAILURE, max_restarts=2))
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert spec["backoffLimit"] == 7  # so many are too many
    assert spec["podReplacementPolicy"] == "Failed"
    assert not spec.keys() & {"backoffLimitPerIndex", "maxFailedIndexes"}


def test_killed_and_removed_pods_are_replaced_failed_ones_not() -> None:
    spec = spec_of(a_job(nodes=2, restart=Restart.EXIT_CODE, max_restarts=3))
    taken_away, failed = spec["podFailurePolicy"]["rules"]
    assert (taken_away["action"], taken_away["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["values"] == list(range(1, 128))
    assert "containerName" not in failed["onExitCodes"], "a webhook may rename the one that trains"
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (6, "Never")


def test_a_patch_may_change_what_a_job_s_pods_need() -> None:
    spec = spec_of(a_job(patch={"spec": {"subdomain": "other"}}))["template"]["spec"]
    assert spec["subdomain"] == "other"


def test_a_patch_must_leave_the_container_that_trains() -> None:
    containers = [{"name": "pytorch", "$patch": "delete"}, {"name": "other", "image": "other:1"}]
    with pytest.raises(ParameterError, match=r"removes.*none of them is pytorch"):
        manifest(a_job(patch={"spec": {"containers": containers}}))


def test_gang_scheduling_by_an_operator_is_refused_in_words() -> None:
    with pytest.raises(ParameterError, match=r"minAvailable.*only an operator supports"):
        manifest(a_job(scheduling={"minAvailable": 2}))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), Phase.ACTIVE),
        (("FailureTarget",), Phase.FAILED),
        (("FailureTarget", "Failed"), Phase.FAILED),
        (("SuccessCriteriaMet",), Phase.SUCCEEDED),
        (("SuccessCriteriaMet", "Complete"), Phase.SUCCEEDED),
        (("Complete",), Phase.SUCCEEDED),
    ],
)
def test_a_job_s_end_is_known_before_its_pods_have_gone(conditions: tuple[str, ...], expected: Phase) -> None:
    assert phase(an_object(a_job(), *conditions)) is expected


def test_a_suspended_job_is_suspended_by_its_spec() -> None:
    assert phase(an_object(a_job(), suspend=True)) is Phase.SUSPENDED


def test_the_controller_s_own_words_report_the_end() -> None:
    job = a_job()
    assert status(job, an_object(job, "FailureTarget"), []).message == "it is FailureTarget"


def test_replicas_are_in_the_order_of_their_ranks() -> None:
    job = a_job(nodes=12)
    found = status(job, an_object(job), [an_indexed_pod(10), an_indexed_pod(2), an_indexed_pod(0)])
    assert [replica.rank for replica in found.replicas] == ["worker-0", "worker-2", "worker-10"]


def test_of_the_pods_of_one_rank_the_newest_counts() -> None:
    job = a_job()
    pods = [
        an_indexed_pod(1, created=20),
        an_indexed_pod(1, "Failed", ended(137), created=5),
        an_indexed_pod(0),
    ]
    found = status(job, an_object(job), pods)
    assert [replica.uid for replica in found.replicas] == ["0-0", "1-20"]
    assert [replica.uid for replica in found.replaced] == ["1-5"]


def test_the_newer_of_two_pods_of_a_second_has_not_ended() -> None:
    job = a_job()
    gone = an_indexed_pod(1, "Failed", ended(1))
    gone["metadata"]["uid"] = "gone"
    found = status(job, an_object(job), [an_indexed_pod(0), an_indexed_pod(1), gone])
    assert [replica.uid for replica in found.replaced] == ["gone"]


def test_somebody_else_s_pods_do_not_count() -> None:
    job, foreign = a_job(), an_indexed_pod(0)
    foreign["metadata"]["ownerReferences"] = [{"uid": "another"}]
    assert status(job, an_object(job), [foreign]).replicas == ()
    assert not owns(an_object(job), foreign)


def test_a_job_waits_for_the_controller_then_for_its_pods() -> None:
    job = a_job()
    assert status(job, an_object(job), []).stage is Stage.RECONCILED
    assert status(job, an_object(job), [an_indexed_pod(0)]).stage is Stage.SCHEDULED
    assert status(job, an_object(job, "Complete"), []).stage is Stage.SCHEDULED
    assert status(job, an_object(job), [an_indexed_pod(0), an_indexed_pod(1)]).stage is Stage.FINISHED
