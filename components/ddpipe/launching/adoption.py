"""This step's job: adopted as an earlier attempt left it, or created once nothing is in its way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from ddpipe.errors import LaunchError, NameTaken, OperatorSilent
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.labels import NODES, SPEC, owner_of
from ddpipe.jobs.status import Phase
from ddpipe.kube.api import ApiError, Cluster, Refused
from ddpipe.kube.discovery import spec_schema
from ddpipe.kube.resources import PODS, Object
from ddpipe.kube.retrying import Patient, backoff, delete, with_retries
from ddpipe.launching import diagnosis, elastic, preflight
from ddpipe.launching.nodes import pods_that_fit
from ddpipe.launching.orphans import sweep
from ddpipe.launching.ownership import owner_references

# Runs that each launcher looks at, one request for each: 200 launchers may start at once.
_MOST_RUNS = 20
# Pods have 30 s to end, and their names are taken for so long.
_REMOVAL_SECONDS = 90.0
# A quota still counts pods that have gone, for seconds or, on a busy cluster, for a minute.
_QUOTA_SECONDS = 60.0
_SHOWN_PODS = 5


@dataclass(frozen=True, slots=True)
class Launching:
    """What the parts of the protocol share.

    Attributes:
        cluster: Where.
        asked: What was asked for.
        job: What runs: the same, with as many pods as it has by now.
        backend: As which kind of job.
        say: Tells people what happens.
    """

    cluster: Cluster
    asked: TrainingJob
    job: TrainingJob
    backend: Backend
    say: Callable[[str], None]

    @property
    def least(self) -> int:
        """How many pods have to run at the same time."""
        return self.asked.min_nodes or self.asked.nodes

    def sized(self, nodes: int) -> Launching:
        """The same with this number of pods."""
        return replace(self, job=replace(self.job, nodes=nodes))

    def as_found(self, found: Object) -> Launching:
        """The same with as many pods as the job found was made with."""
        return self.sized(elastic.size_of(found) or self.asked.nodes)

    @property
    def path(self) -> str:
        """The job's path in the API."""
        return self.backend.resource.path(self.job.namespace, self.job.name)

    @property
    def title(self) -> str:
        """How messages call the job."""
        return diagnosis.name_of(self.job, self.backend)


Begin = Callable[[Launching], tuple[Object, bool]]
"""Gives this step's job, and whether it was there before."""


def adopt(launching: Launching) -> tuple[Object, bool]:
    """This step's job as it is, also one that has failed; none is created.

    Raises:
        JobDeleted: There is none any more.
        NameTaken: It is somebody else's.
    """
    found = _find(launching)
    if found is None:
        raise diagnosis.deleted(launching.job, launching.backend)
    _refuse_strangers(launching, found)
    launching.say(f"adopted {launching.title}, created {found['metadata']['creationTimestamp']}")
    return found, True


def adopt_or_create(launching: Launching, unseen: int | None = None) -> tuple[Object, bool]:
    """This step's job, and whether it was there before.

    Args:
        launching: What is shared.
        unseen: Of a job that may have fewer pods, with how many it is made where it cannot be seen what the
            nodes have room for; None: with all.

    Raises:
        LaunchError: Something keeps the job from running, or its name is somebody else's.
    """
    schema, owners = _surroundings(launching)
    spec = launching.backend.manifest(launching.asked, schema)["metadata"]["annotations"][SPEC]
    while True:
        found = _find(launching)
        if found is None:
            fitted = _fitted(launching, unseen)
            created = _create(fitted, _manifest(fitted, schema, owners, spec))
            if created:
                number = "" if fitted.job == launching.asked else f" (nodes={fitted.job.nodes})"
                launching.say(f"created {launching.title}{number}")
                return created, False
        elif _is_adoptable(launching, found, spec):
            launching.say(f"adopted {launching.title}, created {found['metadata']['creationTimestamp']}")
            return found, True
        else:
            launching.say(f"removing {launching.title} of an earlier attempt")
            remove(launching, found)


def remove(launching: Launching, found: Object) -> None:
    """Delete a job, and wait until its name and those of its pods are free.

    Raises:
        Refused: The server said no.
        LaunchError: It was away for too long, or the job stays.
    """
    delete(launching.cluster, launching.path, found["metadata"]["uid"], launching.job.outage)
    _await_free_names(launching)
    _await_free_quota(launching)


def _surroundings(launching: Launching) -> tuple[Object | None, list[dict[str, Any]]]:
    """What the cluster's CRD knows, and what the job belongs to: it goes when its run goes."""
    cluster, backend = Patient(launching.cluster, launching.job.outage), launching.backend
    schema = spec_schema(cluster, backend.resource, needed=backend.needs_schema)
    return schema, owner_references(cluster, launching.job.namespace)


def _manifest(
    launching: Launching, schema: Object | None, owners: list[dict[str, Any]], spec: str
) -> dict[str, Any]:
    """The object to create; it tells what was asked for, and how many pods it has."""
    manifest = launching.backend.manifest(launching.job, schema)
    metadata = manifest["metadata"]
    annotations = {**metadata["annotations"], SPEC: spec, NODES: str(launching.job.nodes)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations, "ownerReferences": owners}}


def _fitted(launching: Launching, unseen: int | None) -> Launching:
    """The same with as many pods as the nodes have room for, if it may have fewer."""
    job = launching.job
    if not job.min_nodes:
        return launching
    _await_free_names(launching)  # what still goes takes room
    room = pods_that_fit(launching.cluster, job, launching.backend)
    nodes = elastic.fitting(job, room, unseen or job.nodes)
    if room is not None and room < job.nodes:
        launching.say(f"the nodes have room for {room} of {job.nodes} pods at the moment")
    return launching.sized(nodes)


def _find(launching: Launching) -> Object | None:
    try:
        return with_retries(lambda: launching.cluster.get(launching.path), launching.job.outage)
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        if error.status == HTTPStatus.FORBIDDEN:
            preflight.check_rights(launching.cluster, launching.job, launching.backend)
        raise


def _is_adoptable(launching: Launching, found: Object, spec: str) -> bool:
    """Whether the job found is this step's present one, rather than a failed attempt's.

    Raises:
        NameTaken: It is somebody else's, or was asked for differently.
    """
    _refuse_strangers(launching, found)
    if launching.backend.phase(found) is Phase.FAILED or "deletionTimestamp" in found["metadata"]:
        return False
    if found["metadata"]["annotations"].get(SPEC) != spec:
        raise NameTaken(
            what="this step has a job already, asked for differently",
            which=launching.title,
            seen="image, command, resources or the like differ from what is asked for now; it was left alone",
            do="Give this run another id, or remove the job first: ddpipe jobs sweep --run-id "
            f"{launching.job.owner.run_id}",
        )
    return True


def _refuse_strangers(launching: Launching, found: Object) -> None:
    if owner_of(found) != launching.job.owner:
        raise NameTaken(
            what="the job's name is taken",
            which=launching.title,
            seen="an object of this name exists that this step did not create; it was left alone",
            do="Give this run another id, or see whose it is: "
            + diagnosis.kubectl("get -o yaml", launching.job, launching.backend),
        )


def _create(launching: Launching, manifest: Mapping[str, Any]) -> Object | None:
    """The new job; None if another launcher was quicker."""
    until = time.monotonic() + launching.job.limits.hopeless
    while True:
        try:
            _preflight(launching, manifest)
            _sweep(launching)
            _await_free_names(launching)
            return with_retries(lambda: _post(launching, manifest), launching.job.outage)
        except OperatorSilent:
            # An operator that is just being updated is back within seconds.
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _preflight(launching: Launching, manifest: Mapping[str, Any]) -> None:
    for remark in preflight.check(launching.cluster, launching.job, launching.backend, manifest):
        launching.say(remark)


def _post(launching: Launching, manifest: Mapping[str, Any]) -> Object | None:
    try:
        return launching.cluster.create(launching.backend.resource.path(launching.job.namespace), manifest)
    except Refused as error:
        if error.status == HTTPStatus.CONFLICT:
            return None
        if silent := diagnosis.webhook_silent(launching.job, launching.backend, error):
            raise silent from error
        raise


def _sweep(launching: Launching) -> None:
    """What earlier runs of this pipeline left behind; no reason to fail if that cannot be done."""
    job = launching.job
    try:
        sweep(
            launching.cluster,
            job.namespace,
            pipeline=job.owner.pipeline,
            say=launching.say,
            most=_MOST_RUNS,
        )
    except (ApiError, LaunchError) as error:
        launching.say(f"could not look for jobs of earlier runs: {error}")


def _await_free_names(launching: Launching) -> None:
    """Wait for what is left of a removed job: the operator takes long to recover when it meets old pods.

    Raises:
        NameTaken: The removed job itself stays.
    """
    path = PODS.path(launching.job.namespace)
    selector = {"labelSelector": launching.backend.selector(launching.job)}
    until = time.monotonic() + _REMOVAL_SECONDS
    for tried, pause in enumerate(backoff()):
        pods = with_retries(lambda: launching.cluster.get(path, selector)["items"], launching.job.outage)
        found = _find(launching)
        going = found is not None and "deletionTimestamp" in found["metadata"]
        left = [pod for pod in pods if found is None or not launching.backend.owns(found, pod)]
        if not going and not left:
            return
        if time.monotonic() > until:
            break
        if not tried:
            launching.say("waiting for the pods of an earlier attempt to end")
        time.sleep(pause)
    if going:
        raise NameTaken(
            what="the job of an earlier attempt was deleted but is still there",
            which=launching.title,
            seen=f"it has not gone within {_REMOVAL_SECONDS:.0f} s",
            do="See what its finalizers wait for: "
            + diagnosis.kubectl("get -o yaml", launching.job, launching.backend),
        )
    names = ", ".join(pod["metadata"]["name"] for pod in left[:_SHOWN_PODS])
    launching.say(f"{len(left)} pods of an earlier attempt have not ended, continuing without them: {names}")


def _await_free_quota(launching: Launching) -> None:
    """Wait until quotas have room again for the job that was removed: they are updated some time after."""
    job = launching.job
    until = time.monotonic() + _QUOTA_SECONDS
    for tried, pause in enumerate(backoff()):
        problems = with_retries(
            lambda: list(preflight.beyond_quota(launching.cluster, job, launching.backend)), job.outage
        )
        if not problems or time.monotonic() > until:
            return
        if not tried:
            launching.say(f"waiting for the pods of an earlier attempt to leave the quota: {problems[0]}")
        time.sleep(pause)
