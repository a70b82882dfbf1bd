"""A job as a PyTorchJob, and a PyTorchJob as a status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from launch_samples import a_job, a_pod, an_object, ended

from ddpipe.errors import ParameterError
from ddpipe.jobs.job import TrainingJob, owner_of
from ddpipe.jobs.options import Keep, Restart
from ddpipe.jobs.pytorchjob import manifest, phase, status
from ddpipe.jobs.status import Phase, Stage

GUIDE = Path(__file__).parents[3] / "docs/guides/gpus.md"


def pod_of(job: TrainingJob) -> dict[str, Any]:
    template: dict[str, Any] = manifest(job)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    return template


def container_of(job: TrainingJob) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(job)["spec"]["containers"][0]
    return container


def environment_of(job: TrainingJob) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container_of(job)["env"]}


def test_the_same_job_always_gives_the_same_manifest() -> None:
    assert manifest(a_job()) == manifest(a_job())


def test_a_copy_of_the_labels_has_no_owner() -> None:
    body = manifest(a_job())
    assert owner_of(body) == a_job().owner
    assert owner_of({"metadata": {**body["metadata"], "name": "strangers"}}) is None
    assert (
        owner_of({"metadata": {"name": body["metadata"]["name"], "labels": body["metadata"]["labels"]}})
        is None
    )


def test_another_specification_has_another_hash() -> None:
    hashes = {
        manifest(job)["metadata"]["annotations"]["ddpipe.dev/spec"] for job in (a_job(), a_job(image="x:2"))
    }
    assert len(hashes) == 2


def test_a_current_operator_gets_workers_only_that_know_their_rank() -> None:
    job = a_job(nodes=3, processes=2)
    specs = manifest(job)["spec"]["pytorchReplicaSpecs"]
    assert {name: spec["replicas"] for name, spec in specs.items()} == {"Worker": 3}
    environment = environment_of(job)
    assert environment["PET_MASTER_ADDR"] == f"{job.name}-worker-0"
    assert environment["WORLD_SIZE"] == "6"
    assert "replica-index" in environment["PET_NODE_RANK"]["fieldRef"]["fieldPath"]


def test_an_old_operator_gets_a_master_and_known_fields_only() -> None:
    spec = manifest(a_job(restart=Restart.ON_FAILURE), {"pytorchReplicaSpecs": {}})["spec"]
    assert set(spec) == {"pytorchReplicaSpecs", "cleanPodPolicy", "ttlSecondsAfterFinished", "backoffLimit"}
    assert {name: item["replicas"] for name, item in spec["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 1,
    }


def test_what_becomes_of_a_job_lies_where_its_operator_looks_for_it() -> None:
    job = a_job(restart=Restart.ON_FAILURE, max_restarts=2, finished_ttl=60)
    policy = {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 60, "backoffLimit": 5}
    assert manifest(job)["spec"]["runPolicy"] == policy
    assert policy.keys().isdisjoint(manifest(job)["spec"])
    old = manifest(job, {"pytorchReplicaSpecs": {}})["spec"]
    assert {name: old[name] for name in policy} == policy | {"cleanPodPolicy": "None"}


def test_pods_set_torchrun_s_variables_if_no_operator_does() -> None:
    older = {"pytorchReplicaSpecs": {}, "runPolicy": {}, "elasticPolicy": {}}
    job = a_job(nodes=3, processes=2)
    (workers,) = manifest(job, older)["spec"]["pytorchReplicaSpecs"].values()
    environment = environment_in(workers)
    assert (environment["PET_NNODES"], environment["PET_NPROC_PER_NODE"]) == ("3", "2")
    assert "PET_NODE_RANK" in environment
    assert "PET_NNODES" not in environment_of(job)


@pytest.mark.parametrize("nodes", [1, 3])
def test_with_a_master_such_pods_agree_on_their_ranks(nodes: int) -> None:
    job = a_job(nodes=nodes, processes=2)
    replicas = manifest(job, {"pytorchReplicaSpecs": {}})["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == nodes
    for replica in replicas.values():
        environment = environment_in(replica)
        assert (environment["PET_NNODES"], environment["PET_NPROC_PER_NODE"]) == (str(nodes), "2")
        assert (environment["PET_RDZV_BACKEND"], environment["PET_RDZV_ID"]) == ("c10d", job.name)
        assert environment["PET_RDZV_ENDPOINT"] == f"{job.name}-master-0:29400"


def environment_in(replica: dict[str, Any]) -> dict[str, Any]:
    (container,) = replica["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_what_an_older_operator_would_ignore_is_refused_all_at_once() -> None:
    policy = {"properties": {"schedulingPolicy": {"properties": {"minAvailable": {}}}}}
    older = {"pytorchReplicaSpecs": {}, "runPolicy": policy, "elasticPolicy": {}}
    manifest(a_job(scheduling={"minAvailable": 2}), older)
    asked = a_job(queue="team", scheduling={"minAvailable": 2, "scheduleTimeoutSeconds": 60})
    with pytest.raises(ParameterError) as caught:
        manifest(asked, older)
    assert "2 problems" in caught.value.seen
    assert "no queue can hold it" in caught.value.seen
    assert "runPolicy.schedulingPolicy.scheduleTimeoutSeconds (60)" in caught.value.seen
    with pytest.raises(ParameterError, match=r"runPolicy\.schedulingPolicy"):
        manifest(a_job(scheduling={"minAvailable": 2}), {"pytorchReplicaSpecs": {}})


def test_a_pod_passes_the_restricted_level() -> None:
    pod, container = pod_of(a_job())["spec"], container_of(a_job())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_has_the_defaults_that_everybody_adds() -> None:
    job = a_job(nodes=2, processes=2, cpu="5", memory="8Gi", gpus=2)
    pod, container = pod_of(job), container_of(job)
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"] == {"cpu": "5", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert environment_of(job)["OMP_NUM_THREADS"] == "2"
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]  # noqa: S108
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_patch_of_the_guide_gives_what_gpu_nodes_ask_for() -> None:
    (patch,) = re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    job = a_job(gpus=2, gpu_resource="nvidia.com/mig-1g.5gb", patch=json.loads(patch))
    pod = pod_of(job)["spec"]
    limits = container_of(job)["resources"]["limits"]
    assert limits.items() >= {"nvidia.com/mig-1g.5gb": "2", "rdma/hca": "1"}.items()
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "high")
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= pod_of(job)["metadata"]["labels"].items()
    assert not pod_of(a_job())["spec"].keys() & {"runtimeClassName", "hostNetwork", "dnsPolicy"}


def test_the_pods_get_what_a_model_must_be_traced_back_to() -> None:
    environment = environment_of(a_job(image="trainer:0.1"))
    job = a_job(image="trainer:0.1")
    assert (environment["DDPIPE_RUN"], environment["DDPIPE_JOB"]) == (job.owner.run_id, job.name)
    assert environment["DDPIPE_IMAGE"] == "trainer:0.1"


def test_credentials_are_named_never_written() -> None:
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT"} & environment_of(a_job()).keys()
    environment = environment_of(a_job(s3_secret="store", s3_endpoint="minio:9000"))  # noqa: S106
    assert environment["S3_ENDPOINT"] == "minio:9000"
    reference = {"name": "store", "key": "secretkey", "optional": True}
    assert environment["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": reference}


def test_volumes_are_mounted_and_secrets_only_read() -> None:
    volumes = ["claim:data:/data", "secret:key.pem:/key"]
    mounts = container_of(a_job(volumes=volumes))["volumeMounts"][1:]
    assert [(item["mountPath"], item["readOnly"]) for item in mounts] == [("/data", False), ("/key", True)]
    assert pod_of(a_job(volumes=volumes))["spec"]["volumes"][2]["secret"] == {"secretName": "key.pem"}


def test_names_of_volumes_are_labels_and_differ() -> None:
    """A claim's name may have dots and 253 characters, a volume's neither."""
    longest, dashes = "a" * 57, "b" * 46 + "-" * 10
    names = ["key.pem", "key.crt", longest, f"{longest}a", f"{longest}b", f"{dashes}cc"]
    volumes = [f"claim:{name}:/{number}" for number, name in enumerate(names)]
    found = [volume["name"] for volume in pod_of(a_job(volumes=volumes))["spec"]["volumes"][1:]]
    assert found[2] == f"claim-{longest}", "63 characters are a label"
    assert len(set(found)) == len(names)
    for name in found:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
        assert len(name) <= 63
    assert "b-" in found[-1]
    assert "--" not in found[-1]


def test_one_claim_at_two_paths_is_one_volume() -> None:
    job = a_job(volumes=["claim:data:/data", "claim:data:/more:ro", "secret:data:/key"])
    names = [volume["name"] for volume in pod_of(job)["spec"]["volumes"]]
    assert names == ["shm", "claim-data", "secret-data"]
    mounts = [(item["name"], item["mountPath"]) for item in container_of(job)["volumeMounts"][1:]]
    assert mounts == [("claim-data", "/data"), ("claim-data", "/more"), ("secret-data", "/key")]


def test_each_pod_gets_a_copy_of_a_snapshot_that_goes_with_it() -> None:
    job = a_job(volumes=["snapshot:friday:/data:20Gi", "snapshot:friday:/again:20Gi:ro"])
    _, volume = pod_of(job)["spec"]["volumes"]
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "friday"},
        "resources": {"requests": {"storage": "20Gi"}},
    }
    mounts = [(item["mountPath"], item["readOnly"]) for item in container_of(job)["volumeMounts"][1:]]
    assert mounts == [("/data", False), ("/again", True)]


def test_the_lineage_names_volumes_that_data_may_come_from() -> None:
    job = a_job(volumes=["snapshot:friday:/data:20Gi", "claim:more:/more", "secret:key:/key"])
    assert environment_of(job)["DDPIPE_VOLUMES"] == "snapshot friday at /data, claim more at /more"
    assert "DDPIPE_VOLUMES" not in environment_of(a_job(volumes=["secret:key:/key"]))


def test_names_that_no_volume_can_have_stay_different() -> None:
    claims = ["a.b", "a-b", "x" * 100 + "1", "x" * 100 + "2"]
    job = a_job(volumes=[f"claim:{name}:/{number}" for number, name in enumerate(claims)])
    names = {volume["name"] for volume in pod_of(job)["spec"]["volumes"][1:]}
    assert len(names) == 4
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 63 for name in names)


def test_a_patch_that_names_no_item_is_refused_in_words() -> None:
    with pytest.raises(ParameterError, match="has no name, so it is unclear which item it changes"):
        manifest(a_job(patch={"spec": {"containers": [{"image": "other:1"}]}}))


def test_a_patch_changes_adds_and_deletes() -> None:
    patch = {
        "spec": {
            "hostIPC": True,
            "securityContext": {"runAsUser": None},
            "containers": [
                {
                    "name": "pytorch",
                    "env": [{"name": "HOME", "value": "/home"}, {"name": "NEW", "value": "1"}],
                },
                {"name": "helper", "image": "helper:1"},
            ],
            "volumes": [{"name": "shm", "$patch": "delete"}],
        }
    }
    job = a_job(patch=patch)
    spec = pod_of(job)["spec"]
    assert spec["hostIPC"] is True
    assert "runAsUser" not in spec["securityContext"]
    assert spec["volumes"] == []
    assert [container["name"] for container in spec["containers"]] == ["pytorch", "helper"]
    assert environment_of(job)["HOME"] == "/home"
    assert environment_of(job)["NEW"] == "1"
    assert environment_of(job)["LOGNAME"] == "ddpipe"


def test_a_queue_is_a_label_of_the_job() -> None:
    assert manifest(a_job(queue="q"))["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"


def test_the_keep_policy_is_remembered_for_the_sweep() -> None:
    assert manifest(a_job(keep=Keep.FAILED))["metadata"]["annotations"]["ddpipe.dev/keep"] == "failed"


def test_a_condition_counts_only_while_it_is_true() -> None:
    job = a_job()
    assert status(job, an_object(job, "Created", "Succeeded=False", "Running"), []).phase is Phase.ACTIVE


def test_failed_is_sticky() -> None:
    job = a_job()
    assert status(job, an_object(job, "Failed", "Succeeded"), []).phase is Phase.FAILED


def test_a_suspended_job_is_suspended_by_its_spec() -> None:
    job = a_job()
    assert status(job, an_object(job, runPolicy={"suspend": True}), []).phase is Phase.SUSPENDED


def with_master(job: TrainingJob, *conditions: str) -> dict[str, Any]:
    """The job as an operator that asks for a master has it."""
    return an_object(job, *conditions, pytorchReplicaSpecs={"Master": {}, "Worker": {}})


@pytest.mark.parametrize(("code", "expected"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_a_master_s_success_is_not_the_worker_s(code: int, expected: Phase) -> None:
    job = a_job()
    pods = [
        a_pod(job, "master-0", "Succeeded", state=ended(0)),
        a_pod(job, "worker-0", "Failed" if code else "Succeeded", state=ended(code)),
    ]
    assert status(job, with_master(job, "Succeeded"), pods).phase is expected


def test_a_job_is_active_while_a_worker_is_after_its_master_ended() -> None:
    job = a_job()
    pods = [a_pod(job, "master-0", "Succeeded", state=ended(0)), a_pod(job, "worker-0")]
    assert status(job, with_master(job, "Succeeded"), pods).phase is Phase.ACTIVE


def test_without_a_master_the_operator_has_seen_all_workers_succeed() -> None:
    job = a_job()
    assert status(job, an_object(job, "Succeeded"), []).phase is Phase.SUCCEEDED


def test_a_replica_that_succeeded_after_a_restart_has_not_failed() -> None:
    job = a_job()
    again = {"restartCount": 1, "lastState": ended(1)}
    pods = [
        a_pod(job, "master-0", "Succeeded", state=ended(0)),
        a_pod(job, "worker-0", "Succeeded", state=ended(0), container=again),
    ]
    found = status(job, with_master(job, "Succeeded"), pods)
    assert found.phase is Phase.SUCCEEDED
    assert found.restarts == 1
    assert not any(replica.has_failed for replica in found.replicas)


@pytest.mark.parametrize("state", [{"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}])
def test_a_replica_that_is_started_again_shows_how_it_failed_before(state: dict[str, Any]) -> None:
    job = a_job()
    pod = a_pod(job, state=state, container={"restartCount": 1, "lastState": ended(3)})
    (replica,) = status(job, an_object(job, "Running"), [pod]).replicas
    assert replica.failure is not None
    assert replica.failure.code == 3


def test_restarts_of_all_replicas_count() -> None:
    job = a_job()
    pods = [a_pod(job, f"worker-{rank}", container={"restartCount": 2 + rank}) for rank in range(2)]
    assert status(job, an_object(job, "Running"), pods).restarts == 5


def test_the_phase_depends_on_the_object_alone() -> None:
    job = a_job()
    phases = {words: phase(an_object(job, *words)) for words in ((), ("Failed", "Succeeded"), ("Succeeded",))}
    assert list(phases.values()) == [Phase.ACTIVE, Phase.FAILED, Phase.SUCCEEDED]


def test_somebody_else_s_pods_do_not_count() -> None:
    job = a_job()
    foreign = a_pod(job, metadata={"ownerReferences": [{"uid": "another"}]})
    assert status(job, an_object(job, "Created"), [foreign]).replicas == ()


WAITING = {"waiting": {"reason": "ContainerCreating"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "back off"}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"phase": "Pending", "node": "", "state": {}}, Stage.SCHEDULED),
        ({"phase": "Pending", "state": WAITING}, Stage.PULLED),
        ({"phase": "Pending", "state": NO_IMAGE}, Stage.PULLED),
        ({"phase": "Pending", "state": NO_SECRET}, Stage.RUNNING),
        ({}, Stage.FINISHED),
        ({"phase": "Failed", "state": ended(1)}, Stage.FINISHED),
    ],
)
def test_a_job_waits_for_its_slowest_replica(changes: dict[str, Any], stage: Stage) -> None:
    job = a_job()
    pods = [a_pod(job, "worker-0"), a_pod(job, "worker-1", **changes)]
    assert status(job, an_object(job, "Created"), pods).stage is stage


def test_a_job_waits_for_the_operator_then_for_its_pods() -> None:
    job = a_job()
    assert status(job, an_object(job), []).stage is Stage.RECONCILED
    assert status(job, an_object(job, "Created"), []).stage is Stage.SCHEDULED
    assert status(job, an_object(job, "Created"), [a_pod(job)]).stage is Stage.SCHEDULED


def test_replicas_are_in_the_order_of_their_ranks() -> None:
    job = a_job(nodes=12)
    pods = [a_pod(job, rank) for rank in ("worker-10", "worker-2", "master-0")]
    replicas = status(job, an_object(job, "Running"), pods).replicas
    assert [replica.rank for replica in replicas] == ["master-0", "worker-2", "worker-10"]


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("pa$$word", "pa$$$word"),
        ("$(HOME)", "$$(HOME)"),
        ("$$(A)", "$$$$(A)"),
        ("$a ${b} 5$", "$a ${b} 5$"),
    ],
)
def test_values_and_words_arrive_as_they_are_given(value: str, sent: str) -> None:
    """The kubelet makes one dollar sign of two, and the value of a variable of $(NAME)."""
    job = a_job(env={"A": value}, command=["echo", value])
    assert environment_of(job)["A"] == sent
    assert container_of(job)["command"] == ["echo", sent]
