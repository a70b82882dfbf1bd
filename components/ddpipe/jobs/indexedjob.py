"""Indexed Job (batch/v1): job -> manifest, object and pods -> status. Pure functions; no operator is needed.

Every pod has a number and, through a headless service with the job's name, a host name that outlives it. The
ranks meet at the host name of pod 0. A single pod needs no service: a plain Job.

A restart restarts every rank: a lost rank breaks the collective of all others, which fail and are restarted
as well. So the restarts of all pods count together (`backoffLimit`), once for each pod of the group. Limits
per index would let the others continue without a rank. torchrun's own restarts do not help when the pod fails
(out of memory, a lost node); PET_MAX_RESTARTS enables them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpipe.errors import ParameterError
from ddpipe.jobs import CONTAINER
from ddpipe.jobs.backend import Backend, Controller, OwnedObject
from ddpipe.jobs.job import JOB, TrainingJob, manifest_of
from ddpipe.jobs.options import Restart
from ddpipe.jobs.pods import group, ranks, template
from ddpipe.jobs.replicas import INDEX, Read, current_and_replaced, replica_of, stage_of
from ddpipe.jobs.status import JobStatus, Phase, condition
from ddpipe.kube.resources import JOBS, SERVICES, Object, owns

CONTROLLER = Controller(
    name="Job controller",
    find="kubectl get pods -n kube-system -l component=kube-controller-manager",
    webhook="",
    install="Use Kubernetes 1.24 or later",
)
PORT = 29500
_PROGRAM_FAILED = list(range(1, 128))  # exit codes of the program itself; higher ones are signals


def manifest(job: TrainingJob, _schema: Object | None = None) -> dict[str, Any]:
    """The Job that runs `job`; the same job always gives the same manifest."""
    if job.scheduling:
        raise ParameterError(
            what="a Job cannot be scheduled like this",
            which="scheduling",
            seen=f"{dict(job.scheduling)}, which only an operator supports",
            do="Leave it out, let a queue admit the job as a whole, or choose another backend.",
        )
    spec = {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "ttlSecondsAfterFinished": job.finished_ttl,
        **_failure_policy(job),
        "template": pod(job),
    }
    return manifest_of(JOBS, job, spec)


def _failure_policy(job: TrainingJob) -> dict[str, Any]:
    if job.restart == Restart.NEVER:
        return {"backoffLimit": 0}
    # Two pods of one number would both answer to its host name.
    once = {"podReplacementPolicy": "Failed"}
    if job.restart != Restart.EXIT_CODE:
        # Of restarted containers this many are too many; of failed pods one more.
        return {"backoffLimit": job.max_restarts * job.nodes + 1, **once}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    # Of any container: a webhook may rename the one that trains.
    by_itself = {"operator": "In", "values": _PROGRAM_FAILED}
    rules = [
        {"action": "Ignore", "onPodConditions": [disrupted]},
        {"action": "FailJob", "onExitCodes": by_itself},
    ]
    return {"backoffLimit": job.max_restarts * job.nodes, "podFailurePolicy": {"rules": rules}, **once}


def services(job: TrainingJob) -> tuple[OwnedObject, ...]:
    """The service that gives the pods their names; a pod alone needs none."""
    if job.nodes == 1:
        return ()
    # The ranks meet before any of them could be called ready.
    spec = {"clusterIP": "None", "selector": {JOB: job.name}, "publishNotReadyAddresses": True}
    return (OwnedObject.of(SERVICES, job, spec=spec),)


def pod(job: TrainingJob) -> dict[str, Any]:
    """The template of the pods."""
    address = f"{job.name}-0.{job.name}" if job.nodes > 1 else "localhost"
    env = [*ranks(job, address, PORT, f"metadata.annotations['{INDEX}']"), *group(job)]
    plain = template(job, CONTAINER, env)
    in_place = job.restart == Restart.ON_FAILURE
    own = {
        "restartPolicy": "OnFailure" if in_place else "Never",
        **({"subdomain": job.name} if job.nodes > 1 else {}),
    }
    return {**plain, "spec": {**own, **plain["spec"]}}


def phase(found: Object) -> Phase:
    """How far the job is; its result is known before its last pods have ended."""
    if condition(found, "Failed") or condition(found, "FailureTarget"):
        return Phase.FAILED
    if condition(found, "Complete") or condition(found, "SuccessCriteriaMet"):
        return Phase.SUCCEEDED
    return Phase.SUSPENDED if found["spec"].get("suspend") else Phase.ACTIVE


def status(job: TrainingJob, found: Object, pods: Sequence[Object], read: Read = replica_of) -> JobStatus:
    """What the job is doing; see `Backend`. A pod that failed stays when another one takes its place."""
    replicas, replaced = current_and_replaced((item for item in pods if owns(found, item)), CONTAINER, read)
    endings = ("Failed", "FailureTarget", "Complete", "SuccessCriteriaMet")
    ending: Object = next(filter(None, (condition(found, kind) for kind in endings)), {})
    return JobStatus(
        phase=phase(found),
        stage=stage_of(replicas, job.nodes, is_taken_up="startTime" in found.get("status", {})),
        message=ending.get("message", ""),
        replicas=replicas,
        succeeded=found.get("status", {}).get("succeeded") or 0,
        replaced=replaced,
    )


BACKEND = Backend(
    resource=JOBS,
    controller=CONTROLLER,
    manifest=manifest,
    services=services,
    pod=pod,
    phase=phase,
    status=status,
    wanted=lambda found: min(found["spec"].get("completions", 1), found["spec"].get("parallelism", 1)),
    owns=owns,
)
