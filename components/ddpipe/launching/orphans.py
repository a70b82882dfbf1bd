"""Jobs whose launcher never got to clean up: found by their labels, removed when their run is over.

Never anybody else's: a job counts as ddpipe's only if its name is the hash of the owner it is annotated with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from ddpipe.errors import LaunchError, NotRemoved, listed
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.job import Keep, Owner
from ddpipe.jobs.labels import KEEP, MANAGED, PIPELINE, label_value, owner_of
from ddpipe.jobs.status import Phase, true_conditions
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.discovery import is_served
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import delete
from ddpipe.launching.ownership import run_is_over

# For so many seconds a server that is busy or away is asked again.
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job of ddpipe's on the cluster.

    Attributes:
        kind: What kind of object it is.
        name: Its name.
        path: Its path in the API.
        uid: Which object it is.
        owner: The step of the run that owns it.
        created: When, as RFC 3339.
        state: Its latest condition: Created, Running, Succeeded, Failed; Active if it has none.
        run_over: Whether its run has ended; None if that cannot be known.
        kept: Whether it has ended and stays on purpose.
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


def list_jobs(cluster: Cluster, namespace: str, *, pipeline: str | None = None) -> list[FoundJob]:
    """All jobs that ddpipe created in a namespace, of one pipeline or of all, whatever runs them.

    Raises:
        Refused: This account may list none of them.
        Unanswered: The API server is away.
    """
    labels = {MANAGED: "ddpipe"} | ({PIPELINE: label_value(pipeline)} if pipeline is not None else {})
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    found: list[FoundJob] = []
    refusals: list[Refused] = []
    kinds = [backend for backend in all_backends() if is_served(cluster, backend.resource)]
    for kind in kinds:
        try:
            items = cluster.get(kind.resource.path(namespace), {"labelSelector": selector})["items"]
        except Refused as error:
            # A kind that this account may not use has no jobs of its.
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            refusals.append(error)
        else:
            found += (_found(cluster, kind, item, owner) for item in items if (owner := owner_of(item)))
    if refusals and len(refusals) == len(kinds):
        raise refusals[0]
    return found


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        removed: Jobs that are gone.
        problems: Each job that could not be deleted, and why.
    """

    removed: list[FoundJob]
    problems: list[str]

    def complete(self) -> list[FoundJob]:
        """The removed jobs, if that is all there were to remove.

        Raises:
            NotRemoved: Some jobs are still there.
        """
        if self.problems:
            raise NotRemoved(
                what="not all jobs whose run is over could be removed",
                which=f"{len(self.problems)} of {len(self.problems) + len(self.removed)}",
                seen=listed(self.problems),
                do="See that this account may delete them, then sweep again: ddpipe jobs sweep",
            )
        return self.removed


def sweep(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Swept:
    """Remove orphans.

    Args:
        cluster: Where.
        namespace: Where in it.
        pipeline: Of this pipeline only.
        run: The caller knows that this run is over: its jobs go but for kept ones, all others stay.
        say: Is told each job that is removed, or cannot be.

    Raises:
        Refused: This account may not list them.
        Unanswered: The API server is away.
    """
    swept = Swept([], [])
    for job in list_jobs(cluster, namespace, pipeline=pipeline):
        if not _is_orphan(job, run):
            continue
        title = f"{job.kind} {namespace}/{job.name}"
        try:
            delete(cluster, job.path, job.uid, _PATIENCE)
        except (Refused, LaunchError) as error:
            cause = error.seen if isinstance(error, LaunchError) else str(error)
            swept.problems.append(f"{title} of run {job.owner.run_id}: {cause}")
            say(f"could not remove {title}, whose run {job.owner.run_id} is over: {cause}")
        else:
            swept.removed.append(job)
            say(f"removed {title}: run {job.owner.run_id} is over")
    return swept


def _is_orphan(job: FoundJob, run: str | None) -> bool:
    if run is not None:
        return job.owner.run_id == run and not job.kept
    return job.run_over is True and not job.kept


def _found(cluster: Cluster, backend: Backend, item: Object, owner: Owner) -> FoundJob:
    metadata = item["metadata"]
    phase = backend.phase(item)
    keep = Keep(metadata["annotations"].get(KEEP, Keep.NEVER))
    return FoundJob(
        kind=backend.resource.kind,
        name=metadata["name"],
        path=backend.resource.path(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        owner=owner,
        created=metadata["creationTimestamp"],
        state=[phase.capitalize(), *true_conditions(item)][-1],
        run_over=run_is_over(cluster, item),
        kept=phase.is_terminal and keep.keeps(failed=phase is Phase.FAILED),
    )
