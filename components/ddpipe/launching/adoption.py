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

The pods of a lost node can be neither ended nor removed, and may still run behind a cut network. The next job
has another name, the same but for its end (-1, -2, …): launchers find it by the run's label.

A job may need further objects, such as the service whose name its pods find each other by. The job is
created first and owns them, so that the cluster deletes them with it. A launcher that dies between the two
leaves pods that wait for each other; the next attempt creates what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from ddpipe.errors import LaunchError, NameTaken, OperatorSilent
from ddpipe.jobs.backend import Backend, OwnedObject
from ddpipe.jobs.job import MANAGED, NODES, RUN, SPEC, WORKED, TrainingJob, again_of, label_value, owner_of
from ddpipe.jobs.replicas import is_unseen
from ddpipe.jobs.status import Phase
from ddpipe.kube.api import ApiError, Cluster, Refused
from ddpipe.kube.cluster import readable, spec_schema
from ddpipe.kube.resources import PODS, Object, owns
from ddpipe.kube.retrying import backoff, delete, with_retries
from ddpipe.launching import diagnosis, elastic, preflight
from ddpipe.launching.advice import kubectl, name_of
from ddpipe.launching.nodes import pods_that_fit
from ddpipe.launching.ownership import owner_references, reference, sweep
from ddpipe.launching.stopping import Creating


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to run a job."""

    cluster: Cluster
    requested: TrainingJob
    job: TrainingJob  # the one requested, with its current number of pods
    backend: Backend
    say: Callable[[str], None]
    worked: float = 0.0  # seconds of earlier jobs of this step, with other numbers of pods
    creating: Creating = field(default_factory=Creating)

    @property
    def patient(self) -> Cluster:
        """The cluster, which retries each request for as long as the API server may be away."""
        return self.cluster.patient(self.job.limits.outage)

    @property
    def path(self) -> str:
        """The job's path in the API."""
        return self.backend.resource.path(self.job.namespace, self.job.name)

    @property
    def title(self) -> str:
        """The job's name in messages."""
        return name_of(self.job, self.backend)

    def sized(self, nodes: int) -> Attempt:
        """The same attempt with this number of pods."""
        return replace(self, job=replace(self.job, nodes=nodes))

    def of(self, found: Object) -> Attempt:
        """The same attempt with the name and the number of pods of a job."""
        named = replace(self, job=replace(self.job, again=again_of(found)))
        return named.sized(elastic.size_of(found) or self.requested.nodes)

    def find(self) -> Object | None:
        """The job on the cluster; None if there is none."""
        try:
            return self.patient.get(self.path)
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            if error.status == HTTPStatus.FORBIDDEN:
                preflight.check_rights(self.cluster, self.job, self.backend)
            raise

    def find_any(self) -> Object | None:
        """The job, under whichever of its names."""
        if found := self.find():
            return found
        path, run = self.backend.resource.path(self.job.namespace), label_value(self.job.owner.run_id)
        query = {"labelSelector": f"{MANAGED}=ddpipe,{RUN}={run}"}
        listed = readable(lambda: self.patient.get(path, query)) or {"items": []}
        own = [item for item in listed["items"] if owner_of(item) == self.job.owner]
        return max(own, key=again_of, default=None)


# Runs that each launcher looks at, one request for each: 200 launchers may start at once.
_MOST_RUNS = 20

Begin = Callable[[Attempt], tuple[Object, bool]]  # gives this step's job, and whether it existed before
# Pods have 30 s to end, and keep their names until then.
_REMOVAL_SECONDS = 90.0
# A quota still counts pods that are gone, for seconds or, on a busy cluster, for a minute.
_QUOTA_SECONDS = 60.0
_SHOWN_PODS = 5
# The cluster deletes what a removed job owned some time later.
_COLLECTION_SECONDS = 90.0


def adopt(attempt: Attempt) -> tuple[Object, bool]:
    """This step's job as it is, even if it has failed; none is created."""
    found = attempt.find_any()
    if found is None:
        raise diagnosis.deleted(attempt.job, attempt.backend)
    _refuse_strangers(attempt, found)
    attempt = attempt.of(found)
    attempt.say(f"adopted {attempt.title}, created {found['metadata']['creationTimestamp']}")
    return found, True


def adopt_or_create(attempt: Attempt, unseen: int | None = None) -> tuple[Object, bool]:
    """This step's job, and whether it existed before."""
    cluster, backend = attempt.patient, attempt.backend
    schema = spec_schema(cluster, backend.resource, needed=backend.needs_schema)
    # The cluster deletes the job with its run.
    owners = owner_references(cluster, attempt.job.namespace)
    requested = replace(attempt.requested, unhashed=())
    spec = backend.manifest(requested, schema)["metadata"]["annotations"][SPEC]
    while True:
        found = attempt.find_any()
        if found is None:
            fitted = _fitted(attempt, unseen)
            created = _create(fitted, lambda one: _manifest(one, schema, owners, spec))
            if created:
                number = "" if fitted.job.nodes == attempt.requested.nodes else f" (nodes={fitted.job.nodes})"
                attempt.say(f"created {fitted.of(created).title}{number}")
                return created, False
        elif _is_adoptable(attempt, found, spec):
            attempt = attempt.of(found)
            attempt.say(f"adopted {attempt.title}, created {found['metadata']['creationTimestamp']}")
            return found, True
        else:
            attempt = replace(attempt, job=replace(attempt.job, again=again_of(found)))
            attempt.say(f"removing {attempt.title} of an earlier attempt")
            attempt = remove(attempt, found)


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
    attempt = with_free_names(attempt)  # pods that are still terminating occupy nodes
    fitting = pods_that_fit(attempt.cluster, job, attempt.backend)
    if fitting is None:
        return attempt.sized(unseen or job.nodes)
    if fitting < job.nodes:
        attempt.say(f"{fitting} of {job.nodes} pods fit on the nodes at the moment")
    return attempt.sized(min(job.nodes, max(job.min_nodes, fitting)))


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
            + kubectl("get -o yaml", attempt.job, attempt.backend),
        )


def _create(attempt: Attempt, manifest: Callable[[Attempt], Mapping[str, Any]]) -> Object | None:
    """The new job; None if another launcher was faster."""
    began, silent = time.monotonic(), False
    while True:
        try:
            for remark in preflight.check(attempt.cluster, attempt.job, attempt.backend, manifest(attempt)):
                attempt.say(remark)
            _sweep(attempt)
            attempt = with_free_names(attempt)
            # Before the request: a signal while it is under way must wait for the object that it may make.
            attempt.creating.path = attempt.path
            attempt.creating.set()
            return with_retries(partial(_post, attempt, manifest(attempt)), attempt.job.limits.outage)
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
        sweep(attempt.cluster, job.namespace, pipeline=job.owner.pipeline, say=attempt.say, most=_MOST_RUNS)
    except (ApiError, LaunchError) as error:
        attempt.say(f"could not look for jobs of earlier runs: {error}")


def remove(attempt: Attempt, found: Object) -> Attempt:
    """Delete a job, and wait until its name, the names of its pods and its quota are free."""
    delete(attempt.patient, attempt.path, found["metadata"]["uid"])
    attempt = with_free_names(attempt)
    _await_free_quota(attempt)
    return attempt


def with_free_names(attempt: Attempt) -> Attempt:
    """Wait for the rest of a removed job; if pods of a lost node do not end, give the next another name."""
    until = time.monotonic() + _REMOVAL_SECONDS
    for tried, pause in enumerate(backoff()):
        path, selector = PODS.path(attempt.job.namespace), attempt.backend.selector(attempt.job.name)
        left = attempt.patient.get(path, {"labelSelector": selector})["items"]
        found = attempt.find()
        is_going = found is not None and "deletionTimestamp" in found["metadata"]
        left = [pod for pod in left if found is None or not attempt.backend.owns(found, pod)]
        if not is_going and not left:
            return attempt
        is_lost = not is_going and all(map(is_unseen, left))
        if is_lost or time.monotonic() > until:
            break
        if not tried:
            attempt.say("waiting for the pods of an earlier attempt to end")
        time.sleep(pause)
    if is_going:
        raise NameTaken(
            what="the job of an earlier attempt was deleted but still exists",
            which=attempt.title,
            seen=f"it still exists after {_REMOVAL_SECONDS:.0f} s",
            do="See what its finalizers wait for: " + kubectl("get -o yaml", attempt.job, attempt.backend),
        )
    names = ", ".join(pod["metadata"]["name"] for pod in left[:_SHOWN_PODS])
    attempt.say(f"{len(left)} pods of an earlier attempt have not ended, continuing without them: {names}")
    return replace(attempt, job=replace(attempt.job, again=attempt.job.again + 1))


def _await_free_quota(attempt: Attempt) -> None:
    """Wait until quotas have room again for the job that was removed: they are updated some time later."""
    job = attempt.job
    until = time.monotonic() + _QUOTA_SECONDS
    for tried, pause in enumerate(backoff()):
        problems = list(preflight.beyond_quota(attempt.patient, job, attempt.backend))
        if not problems or time.monotonic() > until:
            return
        if not tried:
            attempt.say(f"waiting for the pods of an earlier attempt to leave the quota: {problems[0]}")
        time.sleep(pause)


def create_owned_objects(attempt: Attempt, found: Object) -> None:
    """Create the further objects of the job `found` that no earlier attempt has created."""
    for owned in attempt.backend.owned_objects(attempt.job):
        _ensure(attempt, found, owned)


def _ensure(attempt: Attempt, job: Object, owned: OwnedObject) -> None:
    kind = attempt.backend.resource
    owner = reference(kind.api_version, kind.kind, job["metadata"])
    metadata = {**owned.manifest["metadata"], "ownerReferences": [owner]}
    body = {**owned.manifest, "metadata": metadata}
    until = time.monotonic() + _COLLECTION_SECONDS
    for pause in backoff():
        there = _created_or_found(attempt.patient, owned, body)
        if there and owns(job, there):
            return
        owners = there["metadata"].get("ownerReferences") or () if there else ()
        is_former = any((one["kind"], one["name"]) == (owner["kind"], owner["name"]) for one in owners)
        if there and (not is_former or time.monotonic() > until):
            title = f"{owned.resource.kind} {attempt.job.namespace}/{there['metadata']['name']}"
            raise NameTaken(
                what=f"the name that {attempt.title} needs is taken",
                which=title,
                seen="an object of this name exists that does not belong to the job; it was left alone",
                do="Give this run another ID, or see whose it is: kubectl get -o yaml "
                f"{owned.resource.plural} -n {attempt.job.namespace} {there['metadata']['name']}",
            )
        time.sleep(pause)


def _created_or_found(cluster: Cluster, owned: OwnedObject, body: dict[str, Any]) -> Object | None:
    """The owned, created or as it exists; None if an existing one has just been deleted."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    try:
        return cluster.create(owned.resource.path(namespace), body)
    except Refused as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
    try:
        return cluster.get(owned.resource.path(namespace, name))
    except Refused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    return None
