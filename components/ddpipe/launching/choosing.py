"""Choosing the backend: the named one, else the first that suits cluster, account and job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddpipe.errors import ParameterError, PreflightFailed, listed
from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import Backend, backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.labels import owner_of
from ddpipe.kube.cluster import Cluster
from ddpipe.kube.discovery import is_served, readable, spec_schema
from ddpipe.launching.preflight import missing_rights
from ddpipe.parameters import AUTO


def candidates(job: TrainingJob) -> dict[str, Backend]:
    """The backends that support the job's options, as far as that can be decided without a cluster."""
    found: dict[str, Backend] = {}
    problems: list[ParameterError] = []
    for name in BACKENDS if job.backend == AUTO else (job.backend,):
        kind = backend(name)
        try:
            kind.manifest(job, None)
        except ParameterError as error:
            problems.append(error)
        else:
            found[name] = kind
    if not found:
        raise problems[0]
    return found


def choose(
    cluster: Cluster, job: TrainingJob, kinds: Mapping[str, Backend], say: Callable[[str], None]
) -> Backend:
    """The first of `kinds` that can run the job here; prints which, and why those before it were rejected.

    A retry takes the backend of the earlier attempt, even if the cluster has changed since.
    """
    if job.backend != AUTO:
        return kinds[job.backend]
    cluster = cluster.patient(job.limits.outage)
    served = {name: kind for name, kind in kinds.items() if is_served(cluster, kind.resource)}
    for name, kind in served.items():
        if _was_used(cluster, job, kind):
            say(f"backend {name}: an earlier attempt uses it")
            return kind
    rejected: list[str] = []
    for name, kind in kinds.items():
        problems = list(_problems(cluster, job, kind)) if name in served else ["not on this cluster"]
        if not problems:
            say("; ".join([f"backend {name}", *rejected]))
            return kind
        rejected.append(f"not {name}: {', '.join(problems)}")
    raise PreflightFailed(
        what="no usable backend: this account cannot run the job on this cluster",
        which=f"{job.namespace}/{job.name}",
        seen=listed(rejected),
        do="Fix one of these, or name a backend: its own checks say more.",
    )


def _was_used(cluster: Cluster, job: TrainingJob, kind: Backend) -> bool:
    """Whether this step already has a job of this kind."""
    found = readable(lambda: cluster.get(kind.resource.path(job.namespace, job.name)))
    return found is not None and owner_of(found) == job.owner


def _problems(cluster: Cluster, job: TrainingJob, kind: Backend) -> Iterator[str]:
    """Why a backend that the cluster serves cannot be chosen."""
    yield from missing_rights(cluster, job, kind)
    schema = spec_schema(cluster, kind.resource, needed=kind.needs_schema)
    try:
        kind.manifest(job, schema)
    except ParameterError as error:
        yield error.seen
    else:
        yield from kind.lacks(job, schema)
