"""This step's job: adopted as an earlier attempt left it, or created if there is none.

The job's name is made of run, task and step, so every attempt of a step finds the same object. What it finds
decides; two attempts of one step, the first of which is evicted, and a third that races:

    10:00:00  attempt 1 finds nothing, checks, and creates the job
    10:20:00  attempt 1 is evicted: the job stays
    10:21:00  attempt 2 finds it active, with its own owner and spec, and adopts it
    11:00:00  the job fails; attempt 2 reports the cause, and with keep=failed leaves the job
    11:05:00  attempt 3 finds it failed: removes it, waits for its pods, and creates the job again
    11:05:00  attempt 4, started by mistake at the same time: its create is answered AlreadyExists, it adopts

    found                              what becomes of it
    -----                              ------------------
    nothing                            preflight, sweep of earlier runs, create
    another owner's                    NameTaken: left alone
    this step's, failed or deleted     removed and created again
    this step's, with another spec     NameTaken: the run's inputs have changed
    this step's, active or succeeded   adopted
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ddpipe.errors import LaunchError, NameTaken, OperatorSilent
from ddpipe.jobs.labels import NODES, SPEC, WORKED, owner_of
from ddpipe.jobs.status import Phase
from ddpipe.kube.api import ApiError, Refused
from ddpipe.kube.discovery import spec_schema
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import with_retries
from ddpipe.launching import diagnosis, elastic, preflight
from ddpipe.launching.attempt import Attempt
from ddpipe.launching.nodes import pods_that_fit
from ddpipe.launching.orphans import sweep
from ddpipe.launching.ownership import owner_references
from ddpipe.launching.removal import await_free_names, remove

# Runs that each launcher looks at, one request for each: 200 launchers may start at once.
_MOST_RUNS = 20

Begin = Callable[[Attempt], tuple[Object, bool]]
"""Gives this step's job, and whether it existed before."""


def adopt(attempt: Attempt) -> tuple[Object, bool]:
    """This step's job as it is, even if it has failed; none is created."""
    found = attempt.find()
    if found is None:
        raise diagnosis.deleted(attempt.job, attempt.backend)
    _refuse_strangers(attempt, found)
    attempt.say(f"adopted {attempt.title}, created {found['metadata']['creationTimestamp']}")
    return found, True


def adopt_or_create(attempt: Attempt, unseen: int | None = None) -> tuple[Object, bool]:
    """This step's job, and whether it existed before."""
    schema, owners = _surroundings(attempt)
    spec = attempt.backend.manifest(attempt.requested, schema)["metadata"]["annotations"][SPEC]
    while True:
        found = attempt.find()
        if found is None:
            fitted = _fitted(attempt, unseen)
            created = _create(fitted, _manifest(fitted, schema, owners, spec))
            if created:
                number = "" if fitted.job == attempt.requested else f" (nodes={fitted.job.nodes})"
                attempt.say(f"created {attempt.title}{number}")
                return created, False
        elif _is_adoptable(attempt, found, spec):
            attempt.say(f"adopted {attempt.title}, created {found['metadata']['creationTimestamp']}")
            return found, True
        else:
            attempt.say(f"removing {attempt.title} of an earlier attempt")
            remove(attempt, found)


def _surroundings(attempt: Attempt) -> tuple[Object | None, list[dict[str, Any]]]:
    """What the cluster's CRD knows, and the job's owners: the cluster deletes the job with its run."""
    cluster, backend = attempt.patient, attempt.backend
    schema = spec_schema(cluster, backend.resource, needed=backend.needs_schema)
    return schema, owner_references(cluster, attempt.job.namespace)


def _manifest(
    attempt: Attempt, schema: Object | None, owners: list[dict[str, Any]], spec: str
) -> dict[str, Any]:
    """The object to create, annotated with what a launcher that adopts it has to know."""
    manifest = attempt.backend.manifest(attempt.job, schema)
    metadata = manifest["metadata"]
    own = {SPEC: spec, NODES: str(attempt.job.nodes)}
    if attempt.worked:
        own[WORKED] = f"{attempt.worked:.0f}"
    annotations = {**metadata["annotations"], **own}
    return {**manifest, "metadata": {**metadata, "annotations": annotations, "ownerReferences": owners}}


def _fitted(attempt: Attempt, unseen: int | None) -> Attempt:
    """The same attempt; an elastic job has as many pods as fit on the nodes."""
    job = attempt.job
    if not job.min_nodes:
        return attempt
    await_free_names(attempt)  # pods that are still terminating occupy nodes
    fitting = pods_that_fit(attempt.cluster, job, attempt.backend)
    if fitting is not None and fitting < job.nodes:
        attempt.say(f"{fitting} of {job.nodes} pods fit on the nodes at the moment")
    return attempt.sized(elastic.fitting(job, fitting, unseen or job.nodes))


def _is_adoptable(attempt: Attempt, found: Object, spec: str) -> bool:
    """Whether the job found is this step's current one, rather than a failed attempt's."""
    _refuse_strangers(attempt, found)
    if attempt.backend.phase(found) is Phase.FAILED or "deletionTimestamp" in found["metadata"]:
        return False
    if found["metadata"]["annotations"].get(SPEC) != spec:
        raise NameTaken(
            what="this step already has a job with a different spec",
            which=attempt.title,
            seen="image, command, resources or the like differ from those requested now; it was left alone",
            do="Give this run another ID, or remove the job first: ddpipe jobs clean-up --run-id "
            f"{attempt.job.owner.run_id}",
        )
    return True


def _refuse_strangers(attempt: Attempt, found: Object) -> None:
    if owner_of(found) != attempt.job.owner:
        raise NameTaken(
            what="the job's name is taken",
            which=attempt.title,
            seen="an object of this name exists that this step did not create; it was left alone",
            do="Give this run another ID, or see whose it is: "
            + diagnosis.kubectl("get -o yaml", attempt.job, attempt.backend),
        )


def _create(attempt: Attempt, manifest: Mapping[str, Any]) -> Object | None:
    """The new job; None if another launcher was faster."""
    began, silent = time.monotonic(), False
    while True:
        try:
            for remark in preflight.check(attempt.cluster, attempt.job, attempt.backend, manifest):
                attempt.say(remark)
            _sweep(attempt)
            await_free_names(attempt)
            attempt.creating.set()
            return with_retries(lambda: _post(attempt, manifest), attempt.job.limits.outage)
        except OperatorSilent as error:
            # Its own deadline counts: an operator that is restarted on a busy node is back within a minute.
            if time.monotonic() - began > attempt.job.limits.reconciled:
                raise
            if not silent:
                attempt.say(f"waiting: {error.what}: {error.seen}")
            silent = True
            time.sleep(1)
        finally:
            attempt.creating.clear()


def _post(attempt: Attempt, manifest: Mapping[str, Any]) -> Object | None:
    try:
        return attempt.cluster.create(attempt.backend.resource.path(attempt.job.namespace), manifest)
    except Refused as error:
        if error.status == HTTPStatus.CONFLICT:
            return None
        if silent := diagnosis.webhook_silent(attempt.job, attempt.backend, error):
            raise silent from error
        raise


def _sweep(attempt: Attempt) -> None:
    """Remove what earlier runs of this pipeline left behind; the launch does not depend on it."""
    job = attempt.job
    try:
        sweep(
            attempt.cluster,
            job.namespace,
            pipeline=job.owner.pipeline,
            say=attempt.say,
            most=_MOST_RUNS,
        )
    except (ApiError, LaunchError) as error:
        attempt.say(f"could not look for jobs of earlier runs: {error}")
