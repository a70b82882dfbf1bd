"""Jobs whose launcher could not clean up: found by their labels, removed when their run is over.

Nobody else's are touched: a job is ddpipe's only if its name is the hash of the owner in its annotation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus

from ddpipe.errors import LaunchError, NotRemoved, listed
from ddpipe.jobs import experiment
from ddpipe.jobs.backend import all_backends
from ddpipe.jobs.labels import KEEP, MANAGED, PIPELINE, RUN, label_value, owner_of
from ddpipe.jobs.options import Keep
from ddpipe.jobs.owner import Owner
from ddpipe.jobs.status import Phase, true_conditions
from ddpipe.kube.cluster import Cluster, Refused
from ddpipe.kube.discovery import is_served
from ddpipe.kube.listing import pages
from ddpipe.kube.resources import Object, Resource
from ddpipe.kube.retrying import delete
from ddpipe.launching.ownership import run_of, runs_over

# Seconds for which a request is retried while the server is busy or away.
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job on the cluster that ddpipe created.

    Attributes:
        kind: The kind of object.
        name: Its name.
        path: Its path in the API.
        uid: Its uid.
        owner: The step of the run that owns it.
        created: When, as RFC 3339.
        state: Its latest condition: Created, Running, Succeeded, Failed; Active if it has none.
        run_over: Whether its run has ended; None if that was not asked for, or cannot be known.
        kept: Whether it has ended and is kept on purpose.
    """

    kind: str
    name: str
    path: str
    uid: str
    owner: Owner
    created: str
    state: str
    run_over: bool | None
    kept: bool


def list_jobs(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    most: int | None = None,
) -> list[FoundJob]:
    """All jobs that ddpipe created in a namespace, of every kind, searches with Katib among them."""
    query = {"labelSelector": _selector(pipeline, run)}
    found: list[tuple[FoundJob, Object | None]] = []
    refusals: list[Refused] = []
    kinds = [(resource, phase) for resource, phase in _kinds() if is_served(cluster, resource)]
    for resource, phase in kinds:
        try:
            for page in pages(cluster.get, resource.path(namespace), query):
                found += (
                    _found(resource, phase(item), item, owner) for item in page if (owner := owner_of(item))
                )
        except Refused as error:
            # An account that may not use a kind has no jobs of that kind.
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            refusals.append(error)
    if refusals and len(refusals) == len(kinds):
        raise refusals[0]
    if run is not None:
        # A label holds 63 characters and not all kinds of them: the annotation decides.
        return [job for job, _ in found if job.owner.run_id == run]
    over = runs_over(cluster, namespace, [belongs for _, belongs in found if belongs], most)
    return [replace(job, run_over=over[belongs["uid"]] if belongs else None) for job, belongs in found]


def _kinds() -> list[tuple[Resource, Callable[[Object], Phase]]]:
    """The kinds of objects that stand for a job, each with how far such an object is."""
    jobs = [(backend.resource, backend.phase) for backend in all_backends()]
    return [*jobs, (experiment.RESOURCE, experiment.phase)]


def _selector(pipeline: str | None, run: str | None) -> str:
    labels = {MANAGED: "ddpipe"}
    labels |= {PIPELINE: label_value(pipeline)} if pipeline is not None else {}
    labels |= {RUN: label_value(run)} if run is not None else {}
    return ",".join(f"{name}={value}" for name, value in labels.items())


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep.

    Attributes:
        removed: Jobs that are gone.
        problems: Each job that could not be deleted, and why.
    """

    removed: list[FoundJob]
    problems: list[str]

    def complete(self) -> list[FoundJob]:
        """The removed jobs, if no other had to be removed."""
        if self.problems:
            raise NotRemoved(
                what="not all jobs whose run is over could be removed",
                which=f"{len(self.problems)} of {len(self.problems) + len(self.removed)}",
                seen=listed(self.problems),
                do="Give this account the right to delete them, then run again: ddpipe jobs clean-up",
            )
        return self.removed


def sweep(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    most: int | None = None,
) -> Swept:
    """Remove orphans; each request is retried for a while if the server is busy."""
    patient = cluster.patient(_PATIENCE)
    swept = Swept([], [])
    for job in list_jobs(patient, namespace, pipeline=pipeline, run=run, most=most):
        if job.kept or (run is None and job.run_over is not True):
            continue
        title = f"{job.kind} {namespace}/{job.name}"
        try:
            delete(patient, job.path, job.uid)
        except (Refused, LaunchError) as error:
            cause = error.seen if isinstance(error, LaunchError) else str(error)
            swept.problems.append(f"{title} of run {job.owner.run_id}: {cause}")
            say(f"could not remove {title}, whose run {job.owner.run_id} is over: {cause}")
        else:
            swept.removed.append(job)
            say(f"removed {title}: run {job.owner.run_id} is over")
    return swept


def _found(resource: Resource, phase: Phase, item: Object, owner: Owner) -> tuple[FoundJob, Object | None]:
    """A job, and the reference to the run that it belongs to."""
    metadata = item["metadata"]
    keep = Keep(metadata["annotations"].get(KEEP, Keep.NEVER))
    job = FoundJob(
        kind=resource.kind,
        name=metadata["name"],
        path=resource.path(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        owner=owner,
        created=metadata["creationTimestamp"],
        state=[phase.capitalize(), *true_conditions(item)][-1],
        run_over=None,
        kept=phase.is_terminal and keep.keeps(failed=phase is Phase.FAILED),
    )
    return job, run_of(item)
