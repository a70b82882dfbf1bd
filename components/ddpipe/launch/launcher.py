"""Launch a training job and wait for it: one step of one run owns exactly one job, whatever dies on the way.

name        from the run, the task and the step: a retry finds the same job
take up     ours and active: follow it; succeeded: conclude; failed: remove it and start anew
preflight   all that would keep it from running, before anything is created
create      of two launchers at once one creates, the other takes up
follow      watch it, its pods and its logs; every stage has its deadline
conclude    only a success whose outputs exist is a success; a failure names its root cause
clean       by the keep policy; the cluster's own clean-up stands behind it
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TextIO

from ddpipe.errors import (
    ClusterUnreachable,
    Forbidden,
    JobDeleted,
    LaunchError,
    NameTaken,
    OperatorSilent,
    OutputMissing,
    ParameterError,
)
from ddpipe.launch import diagnosis, preflight
from ddpipe.launch.backends.pytorchjob import BACKEND as PYTORCHJOB
from ddpipe.launch.cluster import ApiError, Cluster, Refused
from ddpipe.launch.following import Ended, Follower
from ddpipe.launch.job import TrainingJob
from ddpipe.launch.limits import Limits
from ddpipe.launch.logs import Logs
from ddpipe.launch.marks import JOB, SPEC, owner_of
from ddpipe.launch.orphans import sweep
from ddpipe.launch.outage import patiently, pauses, refused
from ddpipe.launch.owning import PODS, own_pod_path, owner_references
from ddpipe.launch.status import Backend, Object, Phase
from ddpipe.launch.stopping import Target, deletes_when_told_to_stop
from ddpipe.launch.voice import Voice

BACKENDS: Mapping[str, Backend] = {"pytorchjob": PYTORCHJOB}
"""What can run a job's pods, by name."""

_NOT_FOUND, _CONFLICT = 404, 409
# Pods have 30 s to end, and their names are taken for so long.
_REMOVAL_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training job that succeeded.

    Attributes:
        name: The job's name.
        namespace: Where it ran.
        uid: Which object it was.
        taken_up: Whether an earlier attempt had created it.
        kept: Whether it is still on the cluster.
        seconds: From the start of this launcher to the end.
        restarts: How often containers were started again or pods replaced.
        metrics: The numbers of the last progress line.
    """

    name: str
    namespace: str
    uid: str
    taken_up: bool
    kept: bool
    seconds: float
    restarts: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Launching:
    """What the parts of the protocol share.

    Attributes:
        cluster: Where.
        job: What.
        backend: As which kind of job.
        outage: Seconds for which the API server may be away.
        say: Tells people what happens.
    """

    cluster: Cluster
    job: TrainingJob
    backend: Backend
    outage: float
    say: Callable[[str], None]

    @property
    def path(self) -> str:
        """The job's path in the API."""
        return self.backend.resource.path(self.job.namespace, self.job.name)

    @property
    def title(self) -> str:
        """How messages call the job."""
        return diagnosis.name_of(self.job, self.backend.resource.kind)


def launch(
    job: TrainingJob,
    cluster: Cluster,
    *,
    exists: Callable[[str], bool],
    out: TextIO = sys.stderr,
    outage: float = 600,
    is_process: bool = False,
    backend: str = "pytorchjob",
) -> Outcome:
    """Run `job` on `cluster` and wait for its end.

    Args:
        job: What to run.
        cluster: Where.
        exists: Whether there is something at a URI; asked for the job's outputs.
        out: Where the job's logs and our own remarks go.
        outage: Seconds for which the API server may be away.
        is_process: This process exists for launching: SIGTERM and SIGINT delete the job and end it with 143.
        backend: The kind of job: a name of BACKENDS.

    Raises:
        ParameterError: The backend is unknown.
        LaunchError: The job did not succeed; says why, and what to do.
    """
    if backend not in BACKENDS:
        raise ParameterError(
            what="the job can not be launched",
            which=f"backend {backend!r}",
            seen="it is unknown",
            do=f"Choose one of: {', '.join(BACKENDS)}.",
        )
    voice = Voice(out)
    launching = Launching(cluster, job, BACKENDS[backend], outage, voice.say)
    try:
        with _guarded(launching) if is_process else nullcontext():
            return _launch(launching, voice, exists)
    except Refused as error:
        raise refused(error, launching.title) from error
    finally:
        voice.finish()


def _guarded(launching: Launching) -> AbstractContextManager[None]:
    target = Target(launching.path, launching.job.owner, own_pod_path())
    return deletes_when_told_to_stop(launching.cluster.spare(), target)


def _launch(launching: Launching, voice: Voice, exists: Callable[[str], bool]) -> Outcome:
    began = time.monotonic()
    job = launching.job
    found, taken_up = _take_up_or_create(launching)
    uid: str = found["metadata"]["uid"]
    logs = Logs(launching.cluster, PODS.path(job.namespace), voice.pass_on)
    ended = _follow(launching, uid, logs)
    logs.finish()
    problem = _problem(launching, ended, logs, exists)
    kept = job.keep.keeps(failed=problem is not None)
    if not kept:
        _remove(launching, uid)
    if problem:
        raise problem
    return Outcome(
        name=job.name,
        namespace=job.namespace,
        uid=uid,
        taken_up=taken_up,
        kept=kept,
        seconds=time.monotonic() - began,
        restarts=ended.status.restarts + len(ended.replicas) - len(ended.status.replicas),
        metrics=dict(logs.metrics),
    )


def _take_up_or_create(launching: Launching) -> tuple[Object, bool]:
    """This step's job, and whether it was there before."""
    manifest = _manifest(launching)
    while True:
        found = _find(launching)
        if found is None:
            created = _create(launching, manifest)
            if created:
                launching.say(f"created {launching.title}")
                return created, False
        elif _is_to_be_followed(launching, found, manifest):
            launching.say(f"took up {launching.title}, created {found['metadata']['creationTimestamp']}")
            return found, True
        else:
            launching.say(f"removing {launching.title} of an earlier attempt")
            _remove(launching, found["metadata"]["uid"])
            _await_free_names(launching)


def _manifest(launching: Launching) -> dict[str, Any]:
    """The object to create; it goes when the run goes that it belongs to."""

    def ask() -> dict[str, Any]:
        schema = preflight.schema_of(launching.cluster, launching.backend.resource)
        manifest = launching.backend.manifest(launching.job, schema)
        owners = owner_references(launching.cluster, launching.job.namespace)
        return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": owners}}

    return patiently(ask, launching.outage)


def _find(launching: Launching) -> Object | None:
    try:
        return patiently(lambda: launching.cluster.get(launching.path), launching.outage)
    except Refused as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _is_to_be_followed(launching: Launching, found: Object, manifest: Object) -> bool:
    """Whether the job found is this step's present one, rather than a failed attempt's.

    Raises:
        NameTaken: It is somebody else's, or was asked for differently.
    """
    if owner_of(found) != launching.job.owner:
        raise NameTaken(
            what="the job's name is taken",
            which=launching.title,
            seen="an object of this name exists that this step did not create; it was left alone",
            do="Give this run another id, or see whose it is: kubectl get pytorchjob "
            f"-n {launching.job.namespace} {launching.job.name}",
        )
    status = launching.backend.status(launching.job, found, [])
    if status.phase is Phase.FAILED or "deletionTimestamp" in found["metadata"]:
        return False
    if found["metadata"]["annotations"].get(SPEC) != manifest["metadata"]["annotations"][SPEC]:
        raise NameTaken(
            what="this step has a job already, asked for differently",
            which=launching.title,
            seen="image, command, resources or the like differ from what is asked for now; it was left alone",
            do="Give this run another id, or remove the job first: ddpipe jobs sweep --run "
            f"{launching.job.owner.run}",
        )
    return True


def _create(launching: Launching, manifest: Mapping[str, Any]) -> Object | None:
    """The new job; None if another launcher was quicker."""
    until = time.monotonic() + launching.job.deadlines.hopeless
    while True:
        try:
            patiently(
                lambda: preflight.check(launching.cluster, launching.job, launching.backend, manifest),
                launching.outage,
            )
            _sweep(launching)
            _await_free_names(launching)
            return patiently(lambda: _post(launching, manifest), launching.outage)
        except OperatorSilent:
            # An operator that is just being updated is back within seconds.
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _post(launching: Launching, manifest: Mapping[str, Any]) -> Object | None:
    try:
        return launching.cluster.create(launching.backend.resource.path(launching.job.namespace), manifest)
    except Refused as error:
        if error.status == _CONFLICT:
            return None
        if "failed calling webhook" in error.message:
            kind = launching.backend.resource.kind
            raise diagnosis.operator_silent(launching.job, kind, error.message) from error
        raise


def _sweep(launching: Launching) -> None:
    """What earlier runs of this pipeline left behind; no reason to fail if that can not be seen."""
    job = launching.job
    try:
        sweep(launching.cluster, job.namespace, pipeline=job.owner.pipeline, say=launching.say)
    except ApiError as error:
        launching.say(f"could not look for jobs of earlier runs: {error}")


def _follow(launching: Launching, uid: str, logs: Logs) -> Ended:
    """The job's end; a job that is given up while it is active is stopped, for nobody would watch it."""
    limits = Limits(launching.job.deadlines, launching.outage)
    follower = Follower(launching.cluster, launching.job, launching.backend, uid, logs, launching.say, limits)
    try:
        return follower.follow()
    except (ClusterUnreachable, Forbidden, JobDeleted):
        raise
    except LaunchError:
        _remove(launching, uid)
        raise


def _problem(
    launching: Launching, ended: Ended, logs: Logs, exists: Callable[[str], bool]
) -> LaunchError | None:
    """Why the ended job is no success, if it is none."""
    if ended.status.phase is not Phase.SUCCEEDED:
        kind = launching.backend.resource.kind
        return diagnosis.failure(
            launching.job,
            kind,
            ended.status.message,
            replicas=ended.replicas,
            tail=logs.tail,
            notes=ended.notes,
        )
    missing = [uri for uri in launching.job.outputs if not exists(uri)]
    if missing:
        return OutputMissing(
            what="training ended well but left no result",
            which=launching.title,
            seen=f"nothing at {', '.join(missing)}",
            do="See where the training writes; its log is above.",
        )
    return None


def _remove(launching: Launching, uid: str) -> None:
    """Delete just this object; no error if it is gone already."""
    try:
        patiently(lambda: launching.cluster.delete(launching.path, uid), launching.outage)
    except Refused as error:
        if error.status not in {_NOT_FOUND, _CONFLICT}:
            raise


def _await_free_names(launching: Launching) -> None:
    """Wait for what is left of a removed job: the operator takes long to recover when it meets old pods.

    Raises:
        NameTaken: The removed job itself stays.
    """
    path, selector = PODS.path(launching.job.namespace), {"labelSelector": f"{JOB}={launching.job.name}"}
    until = time.monotonic() + _REMOVAL_SECONDS
    for tried, pause in enumerate(pauses()):
        pods = patiently(lambda: launching.cluster.get(path, selector)["items"], launching.outage)
        found = _find(launching)
        going = found is not None and "deletionTimestamp" in found["metadata"]
        if not going and not any(_is_left_over(pod, found) for pod in pods):
            return
        if time.monotonic() > until:
            break
        if not tried:
            launching.say("waiting for the pods of an earlier attempt to go")
        time.sleep(pause)
    if going:
        raise NameTaken(
            what="the job of an earlier attempt is deleted, but stays",
            which=launching.title,
            seen=f"it is still there after {_REMOVAL_SECONDS:.0f} s",
            do="See what its finalizers wait for: kubectl get pytorchjob -o yaml "
            f"-n {launching.job.namespace} {launching.job.name}",
        )


def _is_left_over(pod: Object, job: Object | None) -> bool:
    """Whether a pod belongs to another object than this one."""
    owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences", [])}
    return job is None or job["metadata"]["uid"] not in owners
