"""Which kind of job is launched: the one that is named, else the first that fits cluster, account and job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddpipe.errors import ParameterError, PreflightFailed, listed
from ddpipe.jobs import AUTO, BACKENDS
from ddpipe.jobs.backend import Backend, backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.labels import owner_of
from ddpipe.kube.api import Cluster
from ddpipe.kube.discovery import is_served, readable, spec_schema
from ddpipe.kube.retrying import Patient
from ddpipe.launching.preflight import missing_rights


def candidates(job: TrainingJob) -> dict[str, Backend]:
    """The kinds that may be meant and can do what is asked for, as far as that shows without a cluster.

    Raises:
        ParameterError: None can; what the first of them has against it.
    """
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
    """One of `kinds`, in their order; `say` is told which, and what is against those before it.

    A retry takes the kind that an earlier attempt took, whatever the cluster has become since.

    Raises:
        PreflightFailed: None can run the job here; why not is told for each.
        ApiError: The server cannot say.
    """
    if job.backend != AUTO:
        return kinds[job.backend]
    cluster = Patient(cluster, job.outage)
    served = {name: kind for name, kind in kinds.items() if is_served(cluster, kind.resource)}
    for name, kind in served.items():
        if _has_begun(cluster, job, kind):
            say(f"backend {name}: an earlier attempt has begun with it")
            return kind
    against: list[str] = []
    for name, kind in kinds.items():
        problems = list(_problems(cluster, job, kind)) if name in served else ["not on this cluster"]
        if not problems:
            say("; ".join([f"backend {name}", *against]))
            return kind
        against.append(f"no {name}: {', '.join(problems)}")
    raise PreflightFailed(
        what="this cluster has nothing that this account can run the job with",
        which=f"{job.namespace}/{job.name}",
        seen=listed(against),
        do="Change one of these, or name the backend that is meant: its own checks tell more.",
    )


def _has_begun(cluster: Cluster, job: TrainingJob, kind: Backend) -> bool:
    """Whether this step has such a job already."""
    found = readable(lambda: cluster.get(kind.resource.path(job.namespace, job.name)))
    return found is not None and owner_of(found) == job.owner


def _problems(cluster: Cluster, job: TrainingJob, kind: Backend) -> Iterator[str]:
    """What keeps a kind that the cluster has from being chosen."""
    yield from missing_rights(cluster, job, kind)
    schema = spec_schema(cluster, kind.resource, needed=kind.needs_schema)
    try:
        kind.manifest(job, schema)
    except ParameterError as error:
        yield error.seen
    else:
        yield from kind.lacks(job, schema)
