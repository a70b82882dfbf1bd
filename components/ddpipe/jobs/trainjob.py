"""TrainJob (trainer.kubeflow.org/v1alpha1): job -> manifest, object and pods -> status. Pure functions.

A TrainJob names a runtime, which has the template of the pods, and what differs from it: `trainer` for the
container that trains, an override for the rest of the pod. The override's name and fields are read from the
CRD; every field of our pod that it supports is sent:

    2.0   podSpecOverrides       service account, node selector, tolerations, volumes and their mounts
    2.1   podTemplateOverrides   also labels, annotations, affinity, pull secrets
    2.2   runtimePatches         also security contexts

None of them supports restarts, priority class, pull policy or termination message: the runtime has these, as
in images/runtime.yaml. An option that is not supported is rejected.

Restarts are also judged here: the Job below restarts a failed pod unless its runtime forbids it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ddpipe.errors import ParameterError, listed
from ddpipe.jobs import CONTAINER
from ddpipe.jobs.backend import Backend, Controller
from ddpipe.jobs.job import TrainingJob, manifest_of
from ddpipe.jobs.options import RUNTIME, Restart
from ddpipe.jobs.pods import ranks, template
from ddpipe.jobs.replicas import INDEX, Read, current_and_replaced, replica_of, stage_of
from ddpipe.jobs.status import JobStatus, Phase, Replica, condition
from ddpipe.kube.resources import Object, Resource, fitted, misfits, names, within

RESOURCE = Resource(group="trainer.kubeflow.org", version="v1alpha1", plural="trainjobs", kind="TrainJob")
TRAINER = Controller(
    name="Kubeflow Trainer",
    find="kubectl get pods -A -l app.kubernetes.io/name=trainer",
    webhook="trainer.kubeflow.org",
    install="Install Kubeflow Trainer 2",
    refusals=("FailedCreate", "TrainJobResourcesCreationFailed", "JobCreationFailed"),
    pods="its training runtime (such as TrainingRuntime/ddpipe of images/runtime.yaml)",
)
STEP = "node"  # the name of the Job that trains, and of its container, in every runtime
PORT = 29500
MANAGER = "ddpipe.dev/launcher"
_OF_TRAINER = ("image", "command", "args", "env")
_PART = "jobset.sigs.k8s.io/replicatedjob-name"
_SIGNALS = 128


def manifest(job: TrainingJob, schema: Object | None = None) -> dict[str, Any]:
    """The TrainJob that runs `job`; the same job always gives the same manifest."""
    if problems := list(_conflicts(job, schema)):
        raise ParameterError(
            what="TrainJobs of this cluster do not support some options",
            which=f"TrainJob {job.namespace}/{job.name}",
            seen=listed(problems),
            do="Leave it out, set it in the training runtime, or choose another backend.",
        )
    pod, container = _parts(job)
    kind, _, name = job.runtime.rpartition("/")
    spec = {
        "runtimeRef": {"apiGroup": RESOURCE.group, "kind": kind or "ClusterTrainingRuntime", "name": name},
        "trainer": {
            # Without a command the image's own is used, not the runtime's.
            **{field: container.get(field, []) for field in _OF_TRAINER},
            "numNodes": job.nodes,
            "numProcPerNode": job.processes_per_pod,
            "resourcesPerNode": container["resources"],
        },
        **_override(pod, schema),
    }
    return manifest_of(RESOURCE, job, spec)


def _conflicts(job: TrainingJob, schema: Object | None) -> Iterator[str]:
    if job.scheduling:
        yield "scheduling: gang scheduling is set up in the training runtime (podGroupPolicy)"
    kept = {
        name: getattr(job, name) for name in ("namespace", "image", "service_account", "deadlines", "again")
    }
    plain = type(job)(owner=job.owner, **kept)
    without = list(_misfits(plain, schema))
    for path, value in _misfits(job, schema):
        if (path, value) not in without:
            yield f"{path} ({json.dumps(value)}): its CRD does not have this field"


def _misfits(job: TrainingJob, schema: Object | None) -> Iterator[tuple[str, Any]]:
    """The fields of the pod that this cluster's TrainJobs do not support."""
    if schema is not None:
        pod, _ = _parts(job)
        yield from misfits(pod, _schema_of_pod(schema))


def lacks(job: TrainingJob, schema: Object | None) -> tuple[str, ...]:
    """What many clusters require and pods of the common runtime would lack; nothing with another runtime."""
    if job.runtime != RUNTIME:
        return ()
    vital = {"spec.securityContext", "metadata"}
    missing = ", ".join(path for path, _ in _misfits(job, schema) if path in vital)
    way_out = "name a runtime that has it, such as TrainingRuntime/ddpipe of images/runtime.yaml"
    return (f"its CRD does not have the pods' {missing} ({way_out})",) if missing else ()


def _parts(job: TrainingJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's template but for what `trainer` says, and the container that trains."""
    # The controller sets PET_* itself, and rejects any that others set.
    env = [
        item
        for item in ranks(job, f"{job.name}-{STEP}-0-0.{job.name}", PORT, f"metadata.annotations['{INDEX}']")
        if not item["name"].startswith("PET_")
    ]
    pod = template(job, CONTAINER, env)
    named = {item["name"]: item for item in pod["spec"]["containers"]}
    container = named.pop(CONTAINER)
    rest = {name: value for name, value in container.items() if name not in {*_OF_TRAINER, "resources"}}
    containers = [{**rest, "name": STEP}, *named.values()]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}, container


def _schema_of_pod(schema: Object) -> Object:
    """What the CRD knows of a pod's template."""
    spec = {"properties": schema}
    if "runtimePatches" in schema:
        of_jobs = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        return within(spec, "runtimePatches", *of_jobs, "template", "spec", "template")
    if "podTemplateOverrides" in schema:
        return within(spec, "podTemplateOverrides")
    return {"properties": {"spec": within(spec, "podSpecOverrides")}}


def _override(pod: Object, schema: Object | None) -> dict[str, Any]:
    """The fields of `spec` that change the runtime's pods."""
    known = pod if schema is None else fitted(pod, _schema_of_pod(schema))
    if schema is None or "runtimePatches" in schema:
        job = {"name": STEP, "template": {"spec": {"template": known}}}
        change = {"template": {"spec": {"replicatedJobs": [job]}}}
        return {"runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": change}]}
    target = {"targetJobs": [{"name": STEP}]}
    if "podTemplateOverrides" in schema:
        return {"podTemplateOverrides": [{**target, **known}]}
    return {"podSpecOverrides": [{**target, **known["spec"]}]}


def phase(found: Object) -> Phase:
    """How far the job is according to the controller."""
    if condition(found, "Failed"):
        return Phase.FAILED
    if condition(found, "Complete"):
        return Phase.SUCCEEDED
    # The spec changes first, the condition when the controller has acted.
    if found["spec"].get("suspend") or condition(found, "Suspended"):
        return Phase.SUSPENDED
    return Phase.ACTIVE


def status(job: TrainingJob, found: Object, pods: Sequence[Object], read: Read = replica_of) -> JobStatus:
    """What the job is doing; see `Backend`."""
    own = [item for item in pods if owns(found, item) and item["metadata"]["labels"][_PART] == STEP]
    replicas, replaced = current_and_replaced(own, STEP, read)
    current = phase(found)
    ending = condition(found, "Failed") or condition(found, "Complete") or {}
    message = ending.get("message", "")
    if current is Phase.ACTIVE:
        current, message = _judged(job, replicas, replaced)
    return JobStatus(
        phase=current,
        stage=stage_of(replicas, job.nodes, is_taken_up=bool(found.get("status"))),
        message=message,
        replicas=replicas,
        # Nobody can change its number of nodes; where no pod is left, this is all that counts them.
        succeeded=_nodes(found) or 0 if current is Phase.SUCCEEDED and not own else 0,
        replaced=replaced,
    )


def _nodes(found: Object) -> int | None:
    nodes: int | None = found["spec"].get("trainer", {}).get("numNodes")
    return nodes


def _judged(job: TrainingJob, replicas: Sequence[Replica], replaced: Sequence[Replica]) -> tuple[Phase, str]:
    """The phase of a job that has not ended for its controller, and why."""
    if any(_is_fatal(job, replica) for replica in (*replicas, *replaced)):
        return Phase.FAILED, ""
    restarts = len(replaced) + sum(replica.restarts for replica in replicas)
    if restarts > job.max_restarts * job.nodes:
        return Phase.FAILED, f"its pods were restarted {restarts} times"
    return Phase.ACTIVE, ""


def _is_fatal(job: TrainingJob, replica: Replica) -> bool:
    """Whether the job has failed because this replica did."""
    if job.restart == Restart.NEVER:
        return replica.has_failed
    failure = None if replica.removed else replica.failure
    return job.restart == Restart.EXIT_CODE and failure is not None and failure.code < _SIGNALS


def owns(found: Object, item: Object) -> bool:
    """Whether a pod is one of this job's present run."""
    # A pod's owner is a Job of a JobSet, so only its age distinguishes it from the pods of an earlier job of
    # this name, or from the time before this one was suspended.
    return bool(item["metadata"]["creationTimestamp"] >= _began(found))


def _began(found: Object) -> str:
    """When the job was created, or resumed at last."""
    created: str = found["metadata"]["creationTimestamp"]
    resumed = [
        str(item["lastTransitionTime"])
        for item in found.get("status", {}).get("conditions") or ()
        if item["type"] == "Suspended" and item["status"] == "False"
    ]
    return max([created, *resumed])


def concerns(found: Object, event: Object) -> bool:
    """Whether an event is about the job, its JobSet or its Job."""
    named, metadata = event["involvedObject"], found["metadata"]
    # Events outlive what they are about.
    is_new = event["metadata"].get("creationTimestamp", "") >= metadata["creationTimestamp"]
    parts = {("JobSet", metadata["name"]), ("Job", f"{metadata['name']}-{STEP}-0")}
    return names(found, event) or (is_new and (named.get("kind"), named.get("name")) in parts)


BACKEND = Backend(
    resource=RESOURCE,
    controller=TRAINER,
    manifest=manifest,
    pod=lambda job: template(job, CONTAINER),  # as far as it is ours
    phase=phase,
    status=status,
    wanted=_nodes,
    owns=owns,
    container=STEP,
    first={_PART: STEP, "batch.kubernetes.io/job-completion-index": "0"},
    # Pods have our own labels only if the CRD supports labels.
    selector=lambda name: f"jobset.sigs.k8s.io/jobset-name={name}",
    concerns=concerns,
    lacks=lacks,
    expires=False,
    needs_schema=True,
)
