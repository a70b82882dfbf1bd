"""Request another number of pods: an annotation on the job, which the launcher that follows it watches.

So the two need no connection but the cluster, and the launcher needs no further rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from ddpipe.errors import Forbidden, NameTaken, ParameterError
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.labels import REQUESTED_NODES, owner_of
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.discovery import is_served
from ddpipe.kube.resources import Object
from ddpipe.launching import elastic


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The result of a request.

    Attributes:
        job: The job's name in messages.
        before: How many pods it has; None if it is not annotated.
        nodes: How many were requested.
        asked: Whether a new request was recorded; not if it has that number, or will have it, already.
    """

    job: str
    before: int | None
    nodes: int
    asked: bool


def scale(cluster: Cluster, namespace: str, name: str, nodes: int) -> Scaled:
    """Request that the launcher of a job continues with this number of pods."""
    if problem := elastic.ALLOWED.problem(nodes):
        raise ParameterError(
            what="no job can have this number of pods", which=name, seen=problem, do="Correct it."
        )
    backend, found = _found(cluster, namespace, name)
    title = f"{backend.resource.kind} {namespace}/{name}"
    _check(backend, found, title)
    before = elastic.size_of(found)
    asked = nodes != (elastic.requested_nodes(found) or before)
    if asked:
        _annotate(cluster, backend, found, title, nodes)
    return Scaled(job=title, before=before, nodes=nodes, asked=asked)


def _found(cluster: Cluster, namespace: str, name: str) -> tuple[Backend, Object]:
    """The job of this name, of any kind; of several, one that ddpipe created."""
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
            do=f"List the jobs: ddpipe jobs ls -n {namespace}",
        )
    return max(found, key=lambda pair: owner_of(pair[1]) is not None)


def _check(backend: Backend, found: Object, title: str) -> None:
    """Reject a job that no launcher follows."""
    if owner_of(found) is None:
        raise NameTaken(
            what="only a job that ddpipe launched can be scaled",
            which=title,
            seen="something else created it; it was left alone",
            do="Scale it with the tool that created it.",
        )
    phase = backend.phase(found)
    if phase.is_terminal or "deletionTimestamp" in found["metadata"]:
        raise ParameterError(
            what="the job cannot be scaled",
            which=title,
            seen=f"it has {phase}" if phase.is_terminal else "it is being removed",
            do="Run the step again with another number of nodes.",
        )


def _annotate(cluster: Cluster, backend: Backend, found: Object, title: str, nodes: int) -> None:
    metadata, kind = found["metadata"], backend.resource
    try:
        cluster.annotate(
            kind.path(metadata["namespace"], metadata["name"]), metadata["uid"], {REQUESTED_NODES: str(nodes)}
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
