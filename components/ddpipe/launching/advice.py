"""One table from the cause of a failure to what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from ddpipe.errors import LaunchError
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob

E = TypeVar("E", bound=LaunchError)
AGAIN = "run the step again"
_RESUMED = f"{AGAIN}: training resumes from its last checkpoint"


class Cause(StrEnum):
    """Why a job does not run or did not end well, and what to do about it."""

    # Only what may pass by itself, or was done from outside, says AGAIN.

    OPERATOR_SILENT = f"Check that it runs: {{find}}; then {AGAIN}."
    WEBHOOK_SILENT = f"Check that its service runs, then {AGAIN}."
    NOT_CREATED = "Find out who asks for fewer pods: its patch, a queue, a person. See: {describe}"
    NOT_SCHEDULED = "Request less per pod, add or free nodes, or increase scheduled in `deadlines`."
    GATED = "Find out who holds the pods by schedulingGates: a queue, a webhook. See: {pods}"
    UNBOUND = "Check the claim and its storage class: kubectl describe pvc -n {job.namespace}"
    NOT_PULLED = "Check that nodes can start {job.image}: {pods}; or increase pulled in `deadlines`."
    NOT_STARTED = "Check that nodes can start {job.image}: {pods}; or increase running in `deadlines`."
    TOO_LONG = "Increase finished in `deadlines`; training resumes from its last checkpoint."
    HUNG = (
        "Find where it hangs: `python -m ddpipe.torchrun` in place of torchrun prints each rank's stack; or "
        "increase silence in `deadlines`. Training resumes from its last checkpoint."
    )
    JOB_DELETED = f"Find out who deleted it; {AGAIN} to resume from the last checkpoint."
    POD_LOST = f"R{_RESUMED[1:]}. {{survive}}"
    OUT_OF_MEMORY = (
        "Give each pod more than {memory} of memory, or use a smaller batch; training resumes from "
        "its last checkpoint."
    )
    NO_COMMAND = "Correct the command, or use an image that has it: {command}"
    STOPPED = f"Find out what stopped it (its node, a time limit, a person); {_RESUMED}."
    SHOT = (
        "Something on its node killed it, most often for memory that the pod's limit does not "
        f"count: see kubectl describe node {{node}}; then {_RESUMED}."
    )
    CRASHED = "Find the native code that crashes: PYTHONFAULTHANDLER=1 in `env` prints the stack."
    EXITED = "Fix what its last lines say; training resumes from its last checkpoint."
    HOOK = "Correct the probe or hook, which the job's patch has or a webhook added, or what it looks at."
    ANOTHER_CONTAINER = "Fix that container, or what adds it: the job's patch, or a webhook."
    UNKNOWN = "See: {describe}"
    NO_OUTPUT = "Check where the training writes; its log is above."
    IMAGE = (
        "Check the name {job.image} and the cluster's access to its registry; a private one needs "
        "`pull_secrets`."
    )
    CONTAINER = "Create what it names, or correct the job."
    MISSING = "Create it (in namespace {job.namespace}, or on the nodes), or correct its name in the job."
    QUOTA = "Request less, wait until others finish, or raise the quota of namespace {job.namespace}."
    POLICY = "Let {controller.pods} set what the policy requires, or run it in another namespace."
    WEBHOOK = "Change what the webhook objects to, or ask its administrator."
    OLD_POD = (
        "A pod of an earlier job does not end; its node may be lost. See: {pods}; then delete it "
        "with --force --grace-period=0."
    )
    UNFIT = "Fix these{hint}."


def advice(cause: Cause, job: TrainingJob, backend: Backend, **more: str) -> str:
    """What to do about a cause, for this job."""
    return cause.value.format(
        job=job,
        controller=backend.controller,
        find=backend.controller.find,
        describe=kubectl("describe", job, backend),
        pods=f"kubectl describe pods -n {job.namespace} -l {backend.selector(job.name)}",
        command=" ".join(job.command),
        **more,
    )


def error_about(job: TrainingJob, backend: Backend, kind: type[E], what: str, seen: str, cause: Cause) -> E:
    """An error about the job as a whole."""
    return kind(what=what, which=name_of(job, backend), seen=seen, do=advice(cause, job, backend))


def name_of(job: TrainingJob, backend: Backend) -> str:
    """The job's name in messages."""
    return f"{backend.resource.kind} {job.namespace}/{job.name}"


def kubectl(verb: str, job: TrainingJob, backend: Backend) -> str:
    """The command that shows the job."""
    return f"kubectl {verb} {backend.resource.full_name} -n {job.namespace} {job.name}"
