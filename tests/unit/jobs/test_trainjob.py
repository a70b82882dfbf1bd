"""A job as a TrainJob of each version of Kubeflow Trainer, and a TrainJob as a status."""

from __future__ import annotations

from typing import Any

import pytest
from launch_samples import HIGH, UID, a_job, a_server, ended

from ddpipe.errors import ParameterError
from ddpipe.jobs.job import TrainingJob, owner_of
from ddpipe.jobs.options import Restart
from ddpipe.jobs.replicas import INDEX
from ddpipe.jobs.status import JobStatus, Phase, Stage
from ddpipe.jobs.trainjob import (
    BACKEND,
    CONTAINER,
    RESOURCE,
    STEP,
    concerns,
    lacks,
    manifest,
    owns,
    phase,
    status,
)
from ddpipe.kube.cluster import spec_schema

# --- what each version has a place for ------------------------------------------------------------


def of(**fields: Any) -> dict[str, Any]:
    """The schema of an object with these fields."""
    return {"type": "object", "properties": fields}


def some(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items}


ANY: dict[str, Any] = {}
_METADATA = of(labels=ANY, annotations=ANY)
_CONTAINERS = {"name": ANY, "env": ANY, "volumeMounts": ANY}
_OF_2_0 = {
    **dict.fromkeys(("serviceAccountName", "nodeSelector", "tolerations", "volumes"), ANY),
    "containers": some(of(**_CONTAINERS)),
}
_OF_2_1 = {**_OF_2_0, "affinity": ANY, "imagePullSecrets": ANY}
_OF_2_2 = {
    **_OF_2_1,
    "securityContext": ANY,
    "containers": some(of(**_CONTAINERS, securityContext=ANY)),
}
_PATCHED_JOB = of(template=of(spec=of(template=of(metadata=_METADATA, spec=of(**_OF_2_2)))))
_PATCH = of(template=of(spec=of(replicatedJobs=some(_PATCHED_JOB))))
SCHEMAS = {
    "2.0": {"podSpecOverrides": some(of(targetJobs=ANY, **_OF_2_0))},
    "2.1": {"podTemplateOverrides": some(of(targetJobs=ANY, metadata=_METADATA, spec=of(**_OF_2_1)))},
    "2.2": {"runtimePatches": some(of(manager=ANY, trainingRuntimeSpec=_PATCH))},
}
VERSIONS = pytest.mark.parametrize("version", SCHEMAS)


def pod_of(job: TrainingJob, version: str) -> dict[str, Any]:
    """What a TrainJob says of the pod, wherever this version has it."""
    spec = manifest(job, SCHEMAS[version])["spec"]
    (field,) = spec.keys() & {"podSpecOverrides", "podTemplateOverrides", "runtimePatches"}
    assert field in SCHEMAS[version]
    (override,) = spec[field]
    if version != "2.2":
        assert override.pop("targetJobs") == [{"name": STEP}]
        return {"spec": override} if version == "2.0" else override
    (job_patch,) = override["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job_patch["name"] == STEP
    pod: dict[str, Any] = job_patch["template"]["spec"]["template"]
    return pod


def trainer_of(job: TrainingJob) -> dict[str, Any]:
    trainer: dict[str, Any] = manifest(job)["spec"]["trainer"]
    return trainer


def environment_of(job: TrainingJob) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in trainer_of(job)["env"]}


@VERSIONS
def test_the_same_job_gives_the_same_manifest_with_its_owner(version: str) -> None:
    body = manifest(a_job(), SCHEMAS[version])
    assert body == manifest(a_job(), SCHEMAS[version])
    assert owner_of(body) == a_job().owner


def test_the_trainer_has_image_command_and_resources() -> None:
    job = a_job(nodes=3, processes=2, command=["python", "train.py"], cpu="2", memory="8Gi", gpus=2)
    trainer = trainer_of(job)
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 2)
    assert (trainer["image"], trainer["command"]) == ("trainer:1", ["python", "train.py"])
    amounts = {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert trainer["resourcesPerNode"] == {"limits": amounts, "requests": amounts}


def test_the_image_s_own_command_is_not_replaced_by_the_runtime_s() -> None:
    assert trainer_of(a_job())["command"] == []
    assert trainer_of(a_job())["args"] == []


def test_the_controller_sets_torchrun_s_variables_we_the_others() -> None:
    job = a_job(nodes=3, processes=2)
    environment = environment_of(job)
    assert not [name for name in environment if name.startswith("PET_")]
    assert environment["MASTER_ADDR"] == f"{job.name}-node-0-0.{job.name}"
    assert environment["WORLD_SIZE"] == "6"
    assert environment["RANK"] == {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}


@pytest.mark.parametrize(
    ("runtime", "kind", "name"),
    [
        ("torch-distributed", "ClusterTrainingRuntime", "torch-distributed"),
        ("TrainingRuntime/ddpipe", "TrainingRuntime", "ddpipe"),
    ],
)
def test_a_runtime_is_the_cluster_s_or_the_namespace_s(runtime: str, kind: str, name: str) -> None:
    reference = manifest(a_job(runtime=runtime))["spec"]["runtimeRef"]
    assert reference == {"apiGroup": "trainer.kubeflow.org", "kind": kind, "name": name}


@VERSIONS
def test_volumes_selectors_and_accounts_have_a_place_in_every_version(version: str) -> None:
    job = a_job(volumes=["claim:data:/data"], node_selector={"gpu": "a100"}, service_account="train")
    spec = pod_of(job, version)["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["shm", "claim-data"]
    (container,) = spec["containers"]
    assert container["name"] == STEP
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/data"]  # noqa: S108
    assert spec["nodeSelector"] == {"gpu": "a100"}
    assert spec["serviceAccountName"] == "train"


def test_what_a_version_has_a_place_for_is_sent() -> None:
    pods = {version: pod_of(a_job(), version) for version in SCHEMAS}
    assert ["metadata" in pod for pod in pods.values()] == [False, True, True]
    assert ["securityContext" in pod["spec"] for pod in pods.values()] == [False, False, True]
    assert pods["2.2"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
    assert pods["2.1"]["metadata"]["labels"]["ddpipe.dev/job"] == a_job().name


@pytest.mark.parametrize(
    ("options", "places", "words"),
    [
        ({"pull_secrets": ["registry"]}, "011", "spec.imagePullSecrets"),
        ({"labels": {"team": "a"}}, "011", '"team": "a"'),
        ({"patch": {"spec": {"securityContext": {"runAsUser": 7}}}}, "001", "spec.securityContext"),
        ({"patch": HIGH}, "000", 'spec.priorityClassName ("high")'),
        ({"pull_policy": "Always"}, "000", f'spec.containers.{STEP}.imagePullPolicy ("Always")'),
        ({"patch": {"spec": {"containers": [{"name": "aid", "image": "b"}]}}}, "000", "aid.image"),
        ({"scheduling": {"minAvailable": 2}}, "000", "podGroupPolicy"),
    ],
)
def test_what_is_asked_for_and_has_no_place_is_refused(
    options: dict[str, Any], places: str, words: str
) -> None:
    for (version, schema), has_place in zip(SCHEMAS.items(), places, strict=True):
        job = a_job(**options)
        if has_place == "1":
            manifest(job, schema)
            continue
        with pytest.raises(ParameterError) as caught:
            manifest(job, schema)
        assert words in caught.value.seen, version


def test_all_rejected_options_are_reported_at_once() -> None:
    with pytest.raises(ParameterError, match="2 problems"):
        manifest(a_job(patch=HIGH, pull_policy="Always"), SCHEMAS["2.0"])


def test_a_patch_names_the_container_as_in_any_other_kind_of_job() -> None:
    changes = {"image": "other:1", "env": [{"name": "NEW", "value": "1"}], "args": ["--fast"]}
    job = a_job(patch={"spec": {"containers": [{"name": CONTAINER, **changes}]}})
    assert trainer_of(job)["image"] == "other:1"
    assert trainer_of(job)["args"] == ["--fast"]
    assert environment_of(job)["NEW"] == "1"


def test_a_patch_cannot_take_away_what_trains() -> None:
    patch = {"spec": {"containers": [{"name": CONTAINER, "$patch": "delete"}]}}
    with pytest.raises(ParameterError, match="removes the container that trains"):
        manifest(a_job(patch=patch))


def test_a_chosen_runtime_may_lack_what_the_common_one_must_have() -> None:
    assert [len(lacks(a_job(), schema)) for schema in SCHEMAS.values()] == [1, 1, 0]
    assert "the pods' spec.securityContext (name a runtime" in lacks(a_job(), SCHEMAS["2.1"])[0]
    assert not lacks(a_job(runtime="ours"), SCHEMAS["2.0"])


def test_a_crd_that_may_not_be_read_is_known_by_its_openapi() -> None:
    server = a_server()
    assert spec_schema(server, RESOURCE, needed=True) is None
    server.describe(RESOURCE, suspend=ANY)
    assert spec_schema(server, RESOURCE, needed=True) == {"suspend": ANY}
    assert spec_schema(server, RESOURCE) is None


# --- what it is doing -------------------------------------------------------------------------------


def an_object(*conditions: str, **spec: object) -> dict[str, Any]:
    """A TrainJob as the API server shows it; a condition written "Suspended=False" has status False."""
    body = manifest(a_job())
    body["metadata"] |= {"uid": UID, "creationTimestamp": "2026-01-01T00:00:10Z"}
    body["spec"] |= spec
    reported = [
        {"type": kind, "status": value or "True", "message": f"it is {kind}"}
        | {"lastTransitionTime": "2026-01-01T00:00:30Z"}
        for kind, _, value in (condition.partition("=") for condition in conditions)
    ]
    body["status"] = {"conditions": reported} if reported else {}
    return body


def a_node_pod(
    index: int = 0,
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    *,
    created: int = 10,
    part: str = STEP,
    **changes: Any,
) -> dict[str, Any]:
    """A pod of the job, created in this second."""
    container = {"name": STEP, "restartCount": 0, "state": state or {"running": {}}}
    return {
        "metadata": {
            "name": f"train-node-0-{index}-{created}",
            "uid": f"{index}-{created}",
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            "annotations": {INDEX: str(index)},
            "labels": {"jobset.sigs.k8s.io/replicatedjob-name": part},
            **changes.get("metadata", {}),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": STEP}]},
        "status": {"phase": phase, "containerStatuses": [{**container, **changes.get("container", {})}]},
    }


def seen(*pods: dict[str, Any], found: dict[str, Any] | None = None, **options: Any) -> JobStatus:
    return status(a_job(**options), found or an_object(), pods)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (an_object(), Phase.ACTIVE),
        (an_object("Complete"), Phase.SUCCEEDED),
        (an_object("Failed"), Phase.FAILED),
        (an_object("Suspended=False", "Complete"), Phase.SUCCEEDED),
        (an_object(suspend=True), Phase.SUSPENDED),
        (an_object("Suspended"), Phase.SUSPENDED),
        (an_object("Suspended=False"), Phase.ACTIVE),
    ],
)
def test_the_phase_depends_on_the_object_alone(found: dict[str, Any], expected: Phase) -> None:
    assert phase(found) is expected
    assert seen(found=found).phase is expected


def test_a_job_without_a_running_condition_runs_as_its_pods_do() -> None:
    assert seen().stage is Stage.RECONCILED
    assert seen(found=an_object("Suspended=False")).stage is Stage.SCHEDULED
    assert seen(a_node_pod(0)).stage is Stage.SCHEDULED
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    assert seen(a_node_pod(0), a_node_pod(1, "Pending", waiting)).stage is Stage.PULLED
    running = seen(a_node_pod(1), a_node_pod(0))
    assert running.stage is Stage.FINISHED
    assert [replica.rank for replica in running.replicas] == ["worker-0", "worker-1"]


def test_pods_from_before_the_job_or_a_suspension_are_not_its_own() -> None:
    assert not owns(an_object(), a_node_pod(created=9))
    assert owns(an_object(), a_node_pod(created=10))
    assert not owns(an_object("Suspended=False"), a_node_pod(created=29))
    assert owns(an_object("Suspended=False"), a_node_pod(created=30))


def test_a_completed_job_without_pods_counts_its_nodes() -> None:
    """Nobody saw its pods: the launcher was away when they ended and were removed."""
    assert seen(found=an_object("Complete")).succeeded == 2
    assert seen(found=an_object("Complete", trainer={"numNodes": 1})).succeeded == 1
    assert seen(found=an_object("Failed")).succeeded == 0
    assert seen(a_node_pod(0, "Succeeded", ended(0)), found=an_object("Complete")).succeeded == 0


def test_a_runtime_s_other_steps_are_no_replicas() -> None:
    assert seen(a_node_pod(0, part="dataset-initializer")).replicas == ()


def test_a_failed_replica_fails_the_job_before_it_is_restarted() -> None:
    again = a_node_pod(1, container={"restartCount": 1, "lastState": ended(3)})
    assert seen(a_node_pod(0), again).phase is Phase.FAILED
    assert seen(a_node_pod(0), a_node_pod(1, "Failed", ended(3))).phase is Phase.FAILED
    replaced = (a_node_pod(1, "Failed", ended(3)), a_node_pod(1, created=12))
    assert seen(a_node_pod(0), *replaced).phase is Phase.FAILED
    assert [replica.uid for replica in seen(*replaced).replaced] == ["1-10"]


GOING = {"deletionTimestamp": "2026-01-01T00:00:40Z"}


@pytest.mark.parametrize(
    ("restart", "pod", "expected"),
    [
        (Restart.NEVER, a_node_pod(1, metadata=GOING), Phase.FAILED),
        (Restart.EXIT_CODE, a_node_pod(1, metadata=GOING), Phase.ACTIVE),
        (Restart.EXIT_CODE, a_node_pod(1, "Failed", ended(3)), Phase.FAILED),
        (Restart.EXIT_CODE, a_node_pod(1, "Failed", ended(137)), Phase.ACTIVE),
        (Restart.ON_FAILURE, a_node_pod(1, "Failed", ended(3)), Phase.ACTIVE),
    ],
)
def test_which_failures_are_final_is_what_was_asked_for(
    restart: Restart, pod: dict[str, Any], expected: Phase
) -> None:
    # Where the tests replace the metadata of a pod that is deleted, they keep its owner.
    pod["metadata"] = {**a_node_pod(1)["metadata"], **pod["metadata"]}
    assert seen(a_node_pod(0), pod, restart=restart).phase is expected


def test_restarts_have_their_limit_for_the_group_as_a_whole() -> None:
    options = {"restart": Restart.ON_FAILURE, "max_restarts": 1}
    pods = [a_node_pod(index, container={"restartCount": 1}) for index in range(2)]
    assert seen(*pods, **options).phase is Phase.ACTIVE
    once_more = seen(*pods, a_node_pod(1, "Failed", ended(1), created=10), **options)
    assert once_more.phase is Phase.FAILED
    assert once_more.message == "its pods were restarted 3 times"


def an_event(kind: str, name: str, uid: str = "", created: str = "2026-01-01T00:00:11Z") -> dict[str, Any]:
    involved = {"kind": kind, "name": name, "uid": uid}
    return {"involvedObject": involved, "metadata": {"creationTimestamp": created}}


def test_events_of_what_makes_the_pods_are_the_job_s() -> None:
    name = a_job().name
    assert concerns(an_object(), an_event("TrainJob", name, UID))
    assert concerns(an_object(), an_event("JobSet", name))
    assert concerns(an_object(), an_event("Job", f"{name}-node-0"))
    assert not concerns(an_object(), an_event("Job", f"{name}-other-0"))
    assert not concerns(an_object(), an_event("TrainJob", name, "another"))


def test_events_of_an_earlier_job_of_this_name_are_not() -> None:
    earlier = an_event("Job", f"{a_job().name}-node-0", created="2026-01-01T00:00:09Z")
    assert not concerns(an_object(), earlier)


def test_pods_are_found_by_a_label_that_every_version_sets() -> None:
    assert BACKEND.selector(a_job().name) == f"jobset.sigs.k8s.io/jobset-name={a_job().name}"
    assert not BACKEND.expires
