"""PyTorchJob (kubeflow.org/v1): job -> manifest, object and pods -> status. Pure functions.

Where the operator allows it (1.4 and later) a job has workers only. With a Master the workers would get an
init container that needs a public image and breaks the *restricted* Pod Security level, and the job would
succeed as soon as rank 0 does. Without one the operator sets no ranks: they come from the pods' labels.

    1.9, 1.8, 1.7   workers only; the operator sets torchrun's variables for nodes and processes
    1.6, 1.5, 1.4   workers only; we set torchrun's variables, and no queue can hold a job
    before          with a master; the fields of `runPolicy` were, or still are, at the top of the spec

An option that the cluster's operator does not know is rejected: the operator would ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ddpipe.errors import ParameterError, listed
from ddpipe.jobs import CONTAINER
from ddpipe.jobs.backend import Backend, Controller
from ddpipe.jobs.job import TrainingJob, manifest_of
from ddpipe.jobs.options import Restart
from ddpipe.jobs.pods import group, ranks, template
from ddpipe.jobs.replicas import Read, name_within, replica_of, stage_of
from ddpipe.jobs.status import JobStatus, Phase, Replica, condition
from ddpipe.kube.resources import Object, Resource, misfits, owns

RESOURCE = Resource(group="kubeflow.org", version="v1", plural="pytorchjobs", kind="PyTorchJob")
OPERATOR = Controller(
    name="Training Operator",
    find="kubectl get pods -A -l control-plane=kubeflow-training-operator",
    webhook="training-operator.kubeflow.org",
    install="Install the Kubeflow Training Operator (1.4 to 1.9)",
)
PORT = 23456  # the operator's default port of rank 0
MEETING_PORT = 29400  # torchrun's own for a rendezvous, so that rank 0's is free
INDEX = "metadata.labels['training.kubeflow.org/replica-index']"
_NO_MASTER = "elasticPolicy"  # a field that only operators know which accept a job of workers alone


def manifest(job: TrainingJob, schema: Object | None = None) -> dict[str, Any]:
    """The PyTorchJob that runs `job`; the same job always gives the same manifest."""
    if problems := list(_conflicts(job, schema)):
        raise ParameterError(
            what="the operator of this cluster does not support some options",
            which=f"PyTorchJob {job.namespace}/{job.name}",
            seen=listed(problems),
            do="Leave it out, update the Training Operator, or choose another backend.",
        )
    known = {"runPolicy", "nprocPerNode", "elasticPolicy"} if schema is None else set(schema)
    spec = {
        "pytorchReplicaSpecs": _replica_specs(job, known),
        **({"nprocPerNode": str(job.processes_per_pod)} if "nprocPerNode" in known else {}),
        **_run_policy(job, known),
    }
    return manifest_of(RESOURCE, job, spec)


def _conflicts(job: TrainingJob, schema: Object | None) -> Iterator[str]:
    if schema is None:
        return
    policy = schema.get("runPolicy", {}).get("properties", {})
    if job.queue and "suspend" not in policy:
        yield f"queue ({job.queue}): it cannot be suspended, so no queue can hold it"
    asked = {"schedulingPolicy": dict(job.scheduling)} if job.scheduling else {}
    for path, value in misfits(asked, {"properties": policy}):
        yield f"runPolicy.{path} ({json.dumps(value)}): its CRD does not have this field"


def _run_policy(job: TrainingJob, known: set[str]) -> dict[str, Any]:
    """The pytorch-operator of MiniKF's days has these at the top of the spec."""
    # With a master the operator ends the job while others still work: their pods are needed to judge them.
    policy: dict[str, Any] = {
        "cleanPodPolicy": "Running" if _NO_MASTER in known else "None",
        "ttlSecondsAfterFinished": job.finished_ttl,
    }
    if job.restart != Restart.NEVER:
        # Every rank restarts with one; the operator adds them all up, and ends the job at this number.
        policy["backoffLimit"] = job.max_restarts * job.nodes + 1
    if job.scheduling:
        policy["schedulingPolicy"] = dict(job.scheduling)
    return {"runPolicy": policy} if "runPolicy" in known else policy


def _replica_specs(job: TrainingJob, known: set[str]) -> dict[str, Any]:
    def replicas(count: int, env: Sequence[Object]) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": job.restart, "template": template(job, CONTAINER, env)}

    set_by_operator = "nprocPerNode" in known  # the size of the group, since 1.7
    if _NO_MASTER in known:
        env = ranks(job, f"{job.name}-worker-0", PORT, INDEX)
        return {"Worker": replicas(job.nodes, env if set_by_operator else [*env, *group(job)])}
    env = [] if set_by_operator else [*group(job), *_meeting(job)]
    others = {"Worker": replicas(job.nodes - 1, env)} if job.nodes > 1 else {}
    return {"Master": replicas(1, env), **others}


def _meeting(job: TrainingJob) -> list[dict[str, Any]]:
    """Where the pods meet to agree on their ranks, which no field of a pod contains if there is a master."""
    # Ranks follow the order of host names, in which the master is first.
    values = {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{job.name}-master-0:{MEETING_PORT}",
        "PET_RDZV_ID": job.name,
        "PET_RDZV_CONF": "join_timeout=900,read_timeout=900",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def phase(found: Object) -> Phase:
    """How far the job is according to the operator."""
    if condition(found, "Failed"):
        return Phase.FAILED
    if condition(found, "Succeeded"):
        return Phase.SUCCEEDED
    # The queue suspends through the spec; the condition follows when the operator has acted.
    if found["spec"].get("runPolicy", {}).get("suspend"):
        return Phase.SUSPENDED
    return Phase.ACTIVE


def status(job: TrainingJob, found: Object, pods: Sequence[Object], read: Read = replica_of) -> JobStatus:
    """What the job is doing; see `Backend`."""
    own = (read(item, name_within(found, item), CONTAINER) for item in pods if owns(found, item))
    replicas = tuple(sorted(own, key=_rank_order))
    current = phase(found)
    ending = condition(found, "Failed") or condition(found, "Succeeded") or {}
    message = ending.get("message", "")
    if current is Phase.SUCCEEDED:
        if any(replica.over and replica.has_failed for replica in replicas):
            current = Phase.FAILED
        # With a master the operator considers only the master: the kept pods of the workers show the rest.
        elif "Master" in found["spec"]["pytorchReplicaSpecs"] and not all(one.over for one in replicas):
            current = Phase.ACTIVE
    state = found.get("status") or {}
    counted = sum(one.get("succeeded") or 0 for one in state.get("replicaStatuses", {}).values())
    stage = stage_of(replicas, job.nodes, is_taken_up=bool(state.get("conditions")))
    return JobStatus(phase=current, stage=stage, message=message, replicas=replicas, succeeded=counted)


def _rank_order(replica: Replica) -> tuple[bool, int]:
    role, _, index = replica.rank.rpartition("-")
    return role != "master", int(index) if index.isdigit() else 0


BACKEND = Backend(
    resource=RESOURCE,
    controller=OPERATOR,
    manifest=manifest,
    pod=lambda job: template(job, CONTAINER),  # of master and workers the same, but for the ranks
    phase=phase,
    status=status,
    wanted=lambda found: sum(one.get("replicas", 1) for one in found["spec"]["pytorchReplicaSpecs"].values()),
    owns=owns,
    first={"training.kubeflow.org/replica-index": "0"},
)
