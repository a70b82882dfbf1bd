"""Launch a training job and wait for it: one step of one run owns exactly one job, whatever dies on the way.

name        from the run, the task and the step: a retry finds the same job
choose      the kind of job, if none is named: what cluster, account and the job itself allow
adopt       ours and active: follow it; succeeded: conclude; failed: remove it and start anew
preflight   all that would keep it from running, before anything is created
create      of two launchers at once one creates, the other adopts; then what the job needs beside it
follow      watch it, its pods and its logs; every stage has its deadline
resize      asked for, or when pods are lost: remove it, make it anew with another number of pods, follow it
conclude    only a success whose outputs exist is a success; a failure names its root cause
clean       by the keep policy; the cluster's own clean-up stands behind it
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TextIO

from ddpipe.errors import (
    ClusterUnreachable,
    Forbidden,
    JobDeleted,
    LaunchError,
    OutputMissing,
    PreflightFailed,
)
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Keep
from ddpipe.jobs.rank_selection import RankSelection
from ddpipe.jobs.status import Phase
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import PODS, Object
from ddpipe.kube.retrying import delete, refused
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.adoption import Begin, Launching, adopt_or_create, remove
from ddpipe.launching.choosing import candidates, choose
from ddpipe.launching.companions import accompany
from ddpipe.launching.deadlines import Limits
from ddpipe.launching.elastic import Resize
from ddpipe.launching.following import Ended, Follower
from ddpipe.launching.logs import Logs
from ddpipe.launching.output import Output
from ddpipe.launching.ownership import own_pod_path
from ddpipe.launching.stopping import Target, deletes_when_told_to_stop

# A job that is over may wait for the cluster's own clean-up; people wait to hear how it ended.
_CLEAN_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training job that succeeded.

    Attributes:
        name: The job's name.
        namespace: Where it ran.
        uid: Which object it was.
        adopted: Whether an earlier attempt had created it.
        kept: Whether it is still on the cluster.
        nodes: With how many pods it ended.
        seconds: From the start of this launcher to the end.
        restarts: How often containers were started again or pods replaced.
        metrics: The numbers of the last progress line.
    """

    name: str
    namespace: str
    uid: str
    adopted: bool
    kept: bool
    nodes: int
    seconds: float
    restarts: int
    metrics: Mapping[str, float]


def launch(
    job: TrainingJob,
    cluster: Cluster,
    *,
    exists: Callable[[str], bool],
    out: TextIO = sys.stderr,
    is_process: bool = False,
    begin: Begin = adopt_or_create,
) -> Outcome:
    """Run `job` on `cluster` and wait for its end.

    Args:
        job: What to run.
        cluster: Where.
        exists: Whether there is something at a URI; asked for the job's outputs.
        out: Where the job's logs and our own remarks go.
        is_process: This process exists for launching: SIGTERM and SIGINT delete the job and end it with 143.
        begin: Where the job comes from: `adopt` takes what is there, and creates nothing.

    Raises:
        ParameterError: The job's options cannot work.
        LaunchError: The job did not succeed; says why, and what to do.
    """
    kinds = candidates(job.validated())  # what is wrong with a patch shows here, before any request
    output = Output(out)
    title = f"job {job.namespace}/{job.name}"
    try:
        kind = choose(cluster, job, kinds, output.say)
        launching = Launching(cluster, job, job, kind, output.say)
        title = launching.title
        with _guarded(launching) if is_process else nullcontext():
            return _launch(launching, output, exists, begin)
    except Refused as error:
        raise refused(error, title) from error
    finally:
        output.finish()


def _guarded(launching: Launching) -> AbstractContextManager[None]:
    target = Target(launching.path, launching.job.owner, own_pod_path())
    return deletes_when_told_to_stop(launching.cluster.spare(), target)


def _launch(launching: Launching, output: Output, exists: Callable[[str], bool], begin: Begin) -> Outcome:
    began = time.monotonic()
    job = launching.asked
    logs = Logs(
        launching.cluster,
        PODS.path(job.namespace),
        output.log,
        ranks=RankSelection.parsed(job.logs),
        say=output.say,
    )
    found, adopted = begin(launching)
    launching, found, ended = _through_all_sizes(launching, found, logs)
    uid: str = found["metadata"]["uid"]
    for rank in logs.finish():
        launching.say(f"the log of {rank} could not be read to its end")
    problem = _problem(launching, ended, logs, exists)
    kept = Keep(job.keep).keeps(failed=problem is not None)
    left = None if kept else _left(launching, uid)
    if problem:
        raise _told_with(problem, left)
    if left:
        launching.say(f"{left}; {_later(launching)}")
    return Outcome(
        name=job.name,
        namespace=job.namespace,
        uid=uid,
        adopted=adopted,
        kept=kept or left is not None,
        nodes=launching.job.nodes,
        seconds=time.monotonic() - began,
        restarts=ended.restarts,
        metrics=dict(logs.metrics),
    )


def _through_all_sizes(launching: Launching, found: Object, logs: Logs) -> tuple[Launching, Object, Ended]:
    """Follow the job to its end, made anew as often as need be; what it was at last, and how it ended."""
    losses, limits = 0, Limits(launching.asked.limits)
    while True:
        launching = launching.as_found(found)
        seen = _follow(launching, found, logs, limits)
        if isinstance(seen, Resize):
            change = seen
        elif again := _again(launching.job, seen, losses):
            change, losses = again, losses + 1
        else:
            return launching, found, seen
        found, limits = _resized(launching, found, change), limits.of_next_job()


def _again(job: TrainingJob, ended: Ended, losses: int) -> Resize | None:
    """How a job goes on that has lost a pod, and that nobody wants to end."""
    if ended.deleted or ended.status.phase is not Phase.FAILED or losses == job.max_restarts:
        return None
    return elastic.survived(job, ended.replicas)


def _resized(launching: Launching, found: Object, change: Resize) -> Object:
    """The job made anew; if there cannot be more pods than before, with as many as before."""
    launching.say(f"{change.why}: removing {launching.title} to make it anew")
    remove(launching, found)
    try:
        return adopt_or_create(launching.sized(change.most), change.nodes)[0]
    except PreflightFailed as error:
        if change.most <= launching.job.nodes:
            raise
        launching.say(f"there cannot be {change.most} pods, so there will be as many as before: {error.seen}")
    return adopt_or_create(launching)[0]


def _follow(launching: Launching, found: Object, logs: Logs, limits: Limits) -> Ended | Resize:
    """The job's end, or a reason to make it anew.

    A job that is given up while it is active is stopped, for nobody would watch it.
    """
    uid: str = found["metadata"]["uid"]
    follower = Follower(
        cluster=launching.cluster,
        job=launching.job,
        least=launching.least,
        backend=launching.backend,
        uid=uid,
        logs=logs,
        say=launching.say,
        limits=limits,
    )
    try:
        if not launching.backend.phase(found).is_terminal:
            accompany(launching, found)
        return follower.follow()
    except (ClusterUnreachable, Forbidden, JobDeleted):
        # What cannot be reached, or with a token that is no longer known, cannot be removed either.
        raise
    except (Refused, LaunchError) as error:
        cause = error if isinstance(error, LaunchError) else refused(error, launching.title)
        raise _told_with(cause, _left(launching, uid)) from error


def _left(launching: Launching, uid: str) -> str | None:
    """Remove the job; why it is still there, if it is."""
    try:
        delete(launching.cluster, launching.path, uid, min(launching.job.outage, _CLEAN_UP_SECONDS))
    except (Refused, LaunchError) as error:
        cause = error.seen if isinstance(error, LaunchError) else str(error)
        return f"{launching.title} could not be removed: {cause}"
    return None


def _later(launching: Launching) -> str:
    """When a job goes that could not be removed."""
    if launching.backend.expires:
        return f"the cluster itself does so {launching.job.finished_ttl / 3600:g} h after the job's end"
    return f"do so later: ddpipe jobs sweep --run-id {launching.job.owner.run_id}"


def _told_with(problem: LaunchError, left: str | None) -> LaunchError:
    """The cause first, then what the clean-up after it could not do."""
    if left is None:
        return problem
    do = f"{problem.do} Besides, {left}."
    return type(problem)(what=problem.what, which=problem.which, seen=problem.seen, do=do)


def _problem(
    launching: Launching, ended: Ended, logs: Logs, exists: Callable[[str], bool]
) -> LaunchError | None:
    """Why the ended job is no success, if it is none."""
    if ended.status.phase is not Phase.SUCCEEDED:
        return diagnosis.failure(
            launching.job,
            launching.backend,
            ended.status.message,
            replicas=ended.replicas,
            tail=logs.tail,
            notes=ended.notes,
        )
    missing = [uri for uri in launching.job.outputs if not exists(uri)]
    if missing:
        return OutputMissing(
            what="training succeeded but left no result",
            which=launching.title,
            seen=f"nothing at {', '.join(missing)}",
            do="Check where the training writes; its log is above.",
        )
    return None
