"""What a job needs beside it, such as the service by whose name its pods find each other.

The job is created first, for it owns them: whoever removes it, and whoever dies, they go with it. A launcher
that dies in between leaves pods that wait for each other; the next attempt creates what is missing.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from ddpipe.errors import NameTaken
from ddpipe.jobs.backend import Companion
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import Object, owns
from ddpipe.kube.retrying import backoff, with_retries
from ddpipe.launching.adoption import Launching
from ddpipe.launching.ownership import reference

# The cluster collects what a removed job has owned some time after it.
_COLLECTION_SECONDS = 90.0


def accompany(launching: Launching, found: Object) -> None:
    """Create what the job `found` needs beside it, as far as no earlier attempt has.

    Raises:
        NameTaken: An object of such a name belongs to somebody else.
        Refused: The server said no.
        ClusterUnreachable: It was away for too long.
    """
    for companion in launching.backend.companions(launching.job):
        _ensure(launching, found, companion)


def _ensure(launching: Launching, job: Object, companion: Companion) -> None:
    kind = launching.backend.resource
    owner = reference(kind.api_version, kind.kind, job["metadata"])
    metadata = {**companion.manifest["metadata"], "ownerReferences": [owner]}
    body = {**companion.manifest, "metadata": metadata}
    until = time.monotonic() + _COLLECTION_SECONDS
    for pause in backoff():
        there = with_retries(
            lambda: _created_or_found(launching.cluster, companion, body), launching.job.outage
        )
        if there and owns(job, there):
            return
        if there and (not _was_owned(there, owner) or time.monotonic() > until):
            title = f"{companion.resource.kind} {launching.job.namespace}/{there['metadata']['name']}"
            raise NameTaken(
                what=f"the name that {launching.title} needs is taken",
                which=title,
                seen="an object of this name exists that does not belong to the job; it was left alone",
                do="Give this run another id, or see whose it is: kubectl get -o yaml "
                f"{companion.resource.plural} -n {launching.job.namespace} {there['metadata']['name']}",
            )
        time.sleep(pause)


def _created_or_found(cluster: Cluster, companion: Companion, body: dict[str, Any]) -> Object | None:
    """The companion, new or as it is; None if one that was there has just gone."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    try:
        return cluster.create(companion.resource.path(namespace), body)
    except Refused as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
    try:
        return cluster.get(companion.resource.path(namespace, name))
    except Refused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    return None


def _was_owned(there: Object, owner: Object) -> bool:
    """Whether it belongs to a job of this name that is no more, and goes by itself."""
    owners = there["metadata"].get("ownerReferences") or ()
    return any((item["kind"], item["name"]) == (owner["kind"], owner["name"]) for item in owners)
