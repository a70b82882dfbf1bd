"""Jobs whose launcher never got to clean up: found by their marks, removed when their run is over.

Never anybody else's: a job counts as ddpipe's only if its name is the hash of the owner it is annotated with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ddpipe.launch.backends.pytorchjob import RESOURCE
from ddpipe.launch.cluster import ApiError, Cluster
from ddpipe.launch.job import Keep, Owner
from ddpipe.launch.marks import KEEP, MANAGED, PIPELINE, label_value, owner_of
from ddpipe.launch.owning import run_is_over
from ddpipe.launch.status import Object, condition


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job of ddpipe's on the cluster.

    Attributes:
        name: Its name.
        uid: Which object it is.
        owner: The step of the run that owns it.
        created: When, as RFC 3339.
        state: The operator's last word: Created, Running, Succeeded, Failed.
        run_over: Whether its run has ended; None if that can not be known.
        kept: Whether it has ended and stays on purpose.
    """

    name: str
    uid: str
    owner: Owner
    created: str
    state: str
    run_over: bool | None
    kept: bool


def list_jobs(cluster: Cluster, namespace: str, *, pipeline: str | None = None) -> list[FoundJob]:
    """All jobs that ddpipe created in a namespace, of one pipeline or of all.

    Raises:
        Refused: This account may not list them.
        Unanswered: The API server is away.
    """
    labels = {MANAGED: "ddpipe"} | ({PIPELINE: label_value(pipeline)} if pipeline is not None else {})
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    items = cluster.get(RESOURCE.path(namespace), {"labelSelector": selector})["items"]
    owned = ((item, owner_of(item)) for item in items)
    return [_found(cluster, item, owner) for item, owner in owned if owner]


def sweep(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[FoundJob]:
    """Remove orphans; those that were removed.

    Args:
        cluster: Where.
        namespace: Where in it.
        pipeline: Of this pipeline only.
        run: The caller knows that this run is over: its jobs go but for kept ones, all others stay.
        say: Is told each job that is removed.
    """
    orphans = [job for job in list_jobs(cluster, namespace, pipeline=pipeline) if _is_orphan(job, run)]
    for job in orphans:
        # Somebody else sweeping at the same time is as good.
        with suppress(ApiError):
            cluster.delete(RESOURCE.path(namespace, job.name), job.uid)
            say(f"removed {RESOURCE.kind} {namespace}/{job.name}: run {job.owner.run_id} is over")
    return orphans


def _is_orphan(job: FoundJob, run: str | None) -> bool:
    if run is not None:
        return job.owner.run_id == run and not job.kept
    return job.run_over is True and not job.kept


def _found(cluster: Cluster, item: Object, owner: Owner) -> FoundJob:
    metadata = item["metadata"]
    state = next(
        (name for name in ("Failed", "Succeeded", "Running", "Created") if condition(item, name)), "New"
    )
    ended = state in {"Failed", "Succeeded"}
    return FoundJob(
        name=metadata["name"],
        uid=metadata["uid"],
        owner=owner,
        created=metadata["creationTimestamp"],
        state=state,
        run_over=run_is_over(cluster, item),
        kept=ended and Keep(metadata["annotations"].get(KEEP, "never")).keeps(failed=state == "Failed"),
    )
