"""Launch a training job and wait for it: one step of one run owns exactly one job, even if processes die.

name        made of run, task and step: a retry finds the same job
choose      pick the kind of job, unless one is named: what the cluster, the account and the job allow
adopt       active: follow it; succeeded: conclude; failed: remove it and create it again
preflight   find all that would keep it from running, before anything is created
create      of two launchers at once one creates, the other adopts; then create the job's owned_objects
follow      watch it, its pods and its logs; every stage has its deadline
resize      on request, or when pods are lost: remove it, create it with another number of pods, follow it
conclude    only a success whose outputs exist is a success; a failure names its root cause
clean up    by the keep policy; behind it is the cluster's own clean-up
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TextIO

from ddpipe.errors import (
    ClusterUnreachable,
    Forbidden,
    JobDeleted,
    LaunchError,
    OutputMissing,
    PreflightFailed,
)
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Keep
from ddpipe.jobs.status import Phase
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import PODS, Object
from ddpipe.kube.retrying import delete, refused
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.adoption import Attempt, Begin, adopt_or_create, create_owned_objects, remove
from ddpipe.launching.advice import Cause, error_about
from ddpipe.launching.deadlines import Limits
from ddpipe.launching.elastic import Resize
from ddpipe.launching.following import Ended, Follower
from ddpipe.launching.logs import Logs
from ddpipe.launching.ownership import own_pod_path, tracker_variables
from ddpipe.launching.preflight import candidates, choose
from ddpipe.launching.progress import Output
from ddpipe.launching.stopping import Target, deletes_on_stop

Check = Callable[[Object], LaunchError | None]  # why a job that succeeded is not a success; None if it is one
# A job that has ended may wait for the cluster's own clean-up; a person waits to see how it ended.
_CLEAN_UP_SECONDS = 60.0

_NAMED = 8  # pods whose logs a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training job that succeeded, and the numbers of its last progress line."""

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
    wrap: Callable[[Backend], Backend] = lambda kind: kind,
    check: Check = lambda _: None,
) -> Outcome:
    """Run `job` on `cluster` and wait for its end."""
    kinds = candidates(job.validated())  # a patch that cannot work is rejected here, before any request
    output = Output(out)
    title = f"job {job.namespace}/{job.name}"
    try:
        kind = wrap(choose(cluster, job, kinds, output.say))
        job = replace(job, unhashed=[*job.unhashed, *tracker_variables(cluster)])
        attempt = Attempt(cluster, job, job, kind, output.say)
        title = attempt.title
        target = Target(attempt.path, job.owner, own_pod_path(), attempt.creating)
        with deletes_on_stop(cluster.spare(), target) if is_process else nullcontext():
            return _launch(attempt, output, exists, begin, check)
    except Refused as error:
        raise refused(error, title) from error
    finally:
        output.finish()


def _launch(
    attempt: Attempt, output: Output, exists: Callable[[str], bool], begin: Begin, check: Check
) -> Outcome:
    began = time.monotonic()
    job = attempt.requested
    logs = Logs(attempt.cluster, PODS.path(job.namespace), output.log, say=output.say)
    found, adopted = begin(attempt)
    attempt, found, ended = _through_all_sizes(attempt, found, logs, adopted=adopted)
    uid: str = found["metadata"]["uid"]
    if unread := logs.finish():
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        attempt.say(f"logs that could not be read to their end: {', '.join(unread[:_NAMED])}{more}")
    problem = _problem(attempt, ended, logs, exists) or check(ended.found)
    kept = Keep(job.keep).keeps(failed=problem is not None)
    left = None if kept else _left(attempt, uid)
    if problem:
        raise _with_left_over(problem, left)
    if left:
        later = f"do so later: ddpipe jobs clean-up --run-id {job.owner.run_id}"
        if attempt.backend.expires:
            later = f"the cluster itself does so {job.finished_ttl / 3600:g} h after the job's end"
        attempt.say(f"{left}; {later}")
    return Outcome(
        name=attempt.job.name,
        namespace=job.namespace,
        uid=uid,
        adopted=adopted,
        kept=kept or left is not None,
        nodes=attempt.job.nodes,
        seconds=time.monotonic() - began,
        restarts=ended.restarts,
        metrics=dict(logs.reports.metrics),
    )


def _through_all_sizes(
    attempt: Attempt, found: Object, logs: Logs, *, adopted: bool
) -> tuple[Attempt, Object, Ended]:
    """Follow the job to its end, and create it again as often as needed; its last state, and how it ended."""
    losses, limits = 0, Limits(attempt.requested.limits, elastic.worked_before(found))
    while True:
        attempt = attempt.of(found)
        attempt.creating.path = attempt.path
        seen = _follow(attempt, found, logs, limits, adopted=adopted)
        if isinstance(seen, Resize):
            change = seen
        elif (
            seen.status.phase is Phase.FAILED
            and not seen.deleted
            and losses < attempt.job.max_restarts
            and (loss := elastic.after_loss(attempt.job, seen.replicas, seen.stuck))
        ):
            change, losses = loss, losses + 1
        else:
            return attempt, found, seen
        limits, adopted = Limits(limits.deadlines, limits.worked), False
        found = _resized(replace(attempt, worked=limits.worked), found, change)


def _resized(attempt: Attempt, found: Object, change: Resize) -> Object:
    """The job, created again; if it cannot have more pods than before, with as many as before."""
    attempt.say(f"{change.why}: removing {attempt.title} to create it again")
    attempt = remove(attempt, found)
    try:
        return adopt_or_create(attempt.sized(change.most), change.nodes)[0]
    except PreflightFailed as error:
        if change.most <= attempt.job.nodes:
            raise
        attempt.say(f"{change.most} pods are not possible, continuing with as many as before: {error.seen}")
    return adopt_or_create(attempt)[0]


def _follow(attempt: Attempt, found: Object, logs: Logs, limits: Limits, *, adopted: bool) -> Ended | Resize:
    """The job's end, or a reason to create it again."""
    # A job that is given up while it is active is removed: nobody would follow it.
    uid: str = found["metadata"]["uid"]
    follower = Follower(
        cluster=attempt.cluster,
        job=attempt.job,
        least=attempt.requested.min_nodes or attempt.requested.nodes,
        backend=attempt.backend,
        uid=uid,
        logs=logs,
        say=attempt.say,
        limits=limits,
        adopted=adopted,
    )
    try:
        if not attempt.backend.phase(found).is_terminal:
            create_owned_objects(attempt, found)
        return follower.follow()
    except (ClusterUnreachable, Forbidden, JobDeleted):
        # A job that cannot be reached, or not with this token, cannot be removed either.
        raise
    except (Refused, LaunchError) as error:
        cause = error if isinstance(error, LaunchError) else refused(error, attempt.title)
        raise _with_left_over(cause, _left(attempt, uid)) from error


def _left(attempt: Attempt, uid: str) -> str | None:
    """Remove the job; why it is still there, if it is."""
    try:
        delete(attempt.cluster.patient(min(attempt.job.limits.outage, _CLEAN_UP_SECONDS)), attempt.path, uid)
    except (Refused, LaunchError) as error:
        cause = error.seen if isinstance(error, LaunchError) else str(error)
        return f"{attempt.title} could not be removed: {cause}"
    return None


def _with_left_over(problem: LaunchError, left: str | None) -> LaunchError:
    """The cause first, then what the clean-up could not do."""
    if left is None:
        return problem
    do = f"{problem.do} In addition, {left}."
    return type(problem)(what=problem.what, which=problem.which, seen=problem.seen, do=do)


def _problem(attempt: Attempt, ended: Ended, logs: Logs, exists: Callable[[str], bool]) -> LaunchError | None:
    """Why the job that ended is not a success; None if it is one."""
    if ended.status.phase is not Phase.SUCCEEDED:
        return diagnosis.failure(
            attempt.job,
            attempt.backend,
            ended.status.message,
            replicas=ended.replicas,
            tail=logs.tail,
            notes=ended.notes,
        )
    if missing := [uri for uri in attempt.job.outputs if not exists(uri)]:
        what, seen = "training succeeded but left no result", f"nothing at {', '.join(missing)}"
        return error_about(attempt.job, attempt.backend, OutputMissing, what, seen, Cause.NO_OUTPUT)
    return None
