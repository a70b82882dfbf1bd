"""Ask for another number of pods: noted on the job, where the launcher that follows it sees it.

Whoever asks needs no way to the launcher but the cluster, and the launcher no right beyond those it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from ddpipe.errors import Forbidden, NameTaken, ParameterError
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.labels import WISH, owner_of
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.discovery import is_served
from ddpipe.kube.resources import Object
from ddpipe.launching import elastic


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What came of it.

    Attributes:
        job: The job, as messages call it.
        before: How many pods it has; None if it does not tell.
        nodes: How many it is to have.
        asked: Whether this was not so already.
    """

    job: str
    before: int | None
    nodes: int
    asked: bool


def scale(cluster: Cluster, namespace: str, name: str, nodes: int) -> Scaled:
    """Ask the launcher of a job to go on with this number of pods.

    Args:
        cluster: Where.
        namespace: Where in it.
        name: Of the job.
        nodes: How many pods it is to have.

    Raises:
        ParameterError: There is no such job that still runs, or none can have so many pods.
        NameTaken: The job is somebody else's.
        Forbidden: This account may not change it.
        ApiError: The server cannot say.
    """
    if problem := elastic.ALLOWED.problem(nodes):
        raise ParameterError(
            what="no job can have this number of pods", which=name, seen=problem, do="Correct it."
        )
    backend, found = _found(cluster, namespace, name)
    title = f"{backend.resource.kind} {namespace}/{name}"
    _check(backend, found, title)
    before = elastic.size_of(found)
    asked = nodes != (elastic.wish_of(found) or before)
    if asked:
        _note(cluster, backend, found, title, nodes)
    return Scaled(job=title, before=before, nodes=nodes, asked=asked)


def _found(cluster: Cluster, namespace: str, name: str) -> tuple[Backend, Object]:
    """The job of this name, whatever runs it; of several, one of ours."""
    found = []
    for backend in all_backends():
        try:
            if is_served(cluster, backend.resource):
                found.append((backend, cluster.get(backend.resource.path(namespace, name))))
        except Refused as error:
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                raise
    if not found:
        raise ParameterError(
            what="there is no such job",
            which=f"{namespace}/{name}",
            seen="no job of this name is on the cluster, or this account may not see it",
            do=f"See which there are: ddpipe jobs ls -n {namespace}",
        )
    return max(found, key=lambda pair: owner_of(pair[1]) is not None)


def _check(backend: Backend, found: Object, title: str) -> None:
    """Refuse what no launcher follows."""
    if owner_of(found) is None:
        raise NameTaken(
            what="only a job that ddpipe launched can be scaled",
            which=title,
            seen="something else created it; it was left alone",
            do="Scale it by what it was created with.",
        )
    phase = backend.phase(found)
    if phase.is_terminal or "deletionTimestamp" in found["metadata"]:
        raise ParameterError(
            what="the job cannot be scaled",
            which=title,
            seen=f"it has {phase}" if phase.is_terminal else "it is being removed",
            do="Run the step again with another number of nodes.",
        )


def _note(cluster: Cluster, backend: Backend, found: Object, title: str, nodes: int) -> None:
    metadata, kind = found["metadata"], backend.resource
    try:
        cluster.annotate(
            kind.path(metadata["namespace"], metadata["name"]), metadata["uid"], {WISH: str(nodes)}
        )
    except Refused as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        rule = f'{{apiGroups: ["{kind.group}"], resources: ["{kind.plural}"], verbs: [patch]}}'
        raise Forbidden(
            what="this account may not scale the job",
            which=title,
            seen=str(error),
            do=f"Add to its Role {rule}; the launcher's own needs no such rule.",
        ) from error
