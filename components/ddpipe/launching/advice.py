"""One table from the cause of a failure to what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob


class Cause(StrEnum):
    """Why a job does not run, or did not end well."""

    OPERATOR_SILENT = "the job's controller does not act"
    WEBHOOK_SILENT = "a webhook does not answer"
    NOT_CREATED = "the controller was told to create fewer pods"
    NOT_SCHEDULED = "no node takes a pod"
    NOT_PULLED = "an image takes too long"
    NOT_STARTED = "a container takes too long to start"
    TOO_LONG = "training takes too long"
    JOB_DELETED = "the job is gone"
    POD_LOST = "a pod was evicted, deleted, or lost with its node"
    OUT_OF_MEMORY = "a rank exceeded its memory"
    NO_COMMAND = "the command does not exist"
    STOPPED = "a rank was stopped by SIGTERM, SIGINT or SIGHUP"
    SHOT = "a rank was stopped by SIGKILL"
    CRASHED = "a rank was stopped by another signal"
    EXITED = "a rank exited with an error"
    ANOTHER_CONTAINER = "another container of a pod failed"
    UNKNOWN = "nothing is known about the pods"
    NO_OUTPUT = "the outputs are missing"
    IMAGE = "an image cannot be pulled"
    CONTAINER = "a container cannot be created"
    MISSING = "a pod needs what does not exist"
    QUOTA = "the quota is used up"
    POLICY = "the namespace's policy forbids such pods"
    WEBHOOK = "a webhook denies the pods"
    OLD_POD = "a pod of an earlier job has not ended"
    REJECTED = "the pods are refused for another reason"
    UNFIT = "the job could not run, as preflight has seen"


AGAIN = "run the step again"
_RESUMED = f"{AGAIN}: training resumes from its last checkpoint"

ADVICE: Mapping[Cause, str] = {
    Cause.OPERATOR_SILENT: f"Check that it runs: {{find}}; then {AGAIN}.",
    Cause.WEBHOOK_SILENT: f"Check that its service runs, then {AGAIN}.",
    Cause.NOT_CREATED: "Find out who asks for fewer pods: its patch, a queue, a person. See: {describe}",
    Cause.NOT_SCHEDULED: "Request less per pod, add or free nodes, or increase scheduled in `deadlines`.",
    Cause.NOT_PULLED: "Check that nodes can start {job.image}: {pods}; or increase pulled in `deadlines`.",
    Cause.NOT_STARTED: "Check that nodes can start {job.image}: {pods}; or increase running in `deadlines`.",
    Cause.TOO_LONG: "Increase finished in `deadlines`; training resumes from its last checkpoint.",
    Cause.JOB_DELETED: f"Find out who deleted it; {AGAIN} to resume from the last checkpoint.",
    Cause.POD_LOST: f"R{_RESUMED[1:]}. {{survive}}",
    Cause.OUT_OF_MEMORY: "Give each pod more than {memory} of memory, or use a smaller batch; "
    "training resumes from its last checkpoint.",
    Cause.NO_COMMAND: "Correct the command, or use an image that has it: {command}",
    Cause.STOPPED: f"Find out what stopped it (its node, a time limit, a person); {_RESUMED}.",
    Cause.SHOT: "Something on its node killed it, most often for memory that the pod's limit does not count: "
    f"see kubectl describe node {{node}}; then {_RESUMED}.",
    Cause.CRASHED: "Find the native code that crashes: PYTHONFAULTHANDLER=1 in `env` prints the stack.",
    Cause.EXITED: "Fix what its last lines say; training resumes from its last checkpoint.",
    Cause.ANOTHER_CONTAINER: "Fix that container, or what adds it: the job's patch, or a webhook.",
    Cause.UNKNOWN: "See: {describe}",
    Cause.NO_OUTPUT: "Check where the training writes; its log is above.",
    Cause.IMAGE: "Check the name {job.image} and the cluster's access to its registry; a private one needs "
    "`pull_secrets`.",
    Cause.CONTAINER: "Create what it names, or correct the job.",
    Cause.MISSING: "Create it in namespace {job.namespace}, or correct its name in the job.",
    Cause.QUOTA: "Request less, wait until others finish, or raise the quota of namespace {job.namespace}.",
    Cause.POLICY: "Let {controller.pods} set what the policy requires, or run it in another namespace.",
    Cause.WEBHOOK: "Change what the webhook objects to, or ask its administrator.",
    Cause.OLD_POD: "A pod of an earlier job does not end; its node may be lost. See: {pods}; then "
    "delete it with --force --grace-period=0.",
    Cause.REJECTED: "See: {describe}",
    Cause.UNFIT: "Fix these{hint}.",
}
"""What to do about each cause. Only what may pass by itself, or was done from outside, ends in AGAIN."""


def advice(cause: Cause, job: TrainingJob, backend: Backend, **more: str) -> str:
    """What to do about a cause, for this job."""
    return ADVICE[cause].format(
        job=job,
        controller=backend.controller,
        find=backend.controller.find,
        describe=kubectl("describe", job, backend),
        pods=f"kubectl describe pods -n {job.namespace} -l {backend.selector(job)}",
        command=" ".join(job.command),
        **more,
    )


def kubectl(verb: str, job: TrainingJob, backend: Backend) -> str:
    """The command that shows the job."""
    return f"kubectl {verb} {backend.resource.full_name} -n {job.namespace} {job.name}"
