"""Objects that a job needs in addition, such as the service whose name its pods find each other by.

The job is created first and owns them, so that the cluster deletes them with it. A launcher that dies between
the two leaves pods that wait for each other; the next attempt creates what is missing.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from ddpipe.errors import NameTaken
from ddpipe.jobs.backend import Companion
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import Object, owns
from ddpipe.kube.retrying import backoff
from ddpipe.launching.attempt import Attempt
from ddpipe.launching.ownership import reference

# The cluster deletes what a removed job owned some time later.
_COLLECTION_SECONDS = 90.0


def accompany(attempt: Attempt, found: Object) -> None:
    """Create the companions of the job `found` that no earlier attempt has created."""
    for companion in attempt.backend.companions(attempt.job):
        _ensure(attempt, found, companion)


def _ensure(attempt: Attempt, job: Object, companion: Companion) -> None:
    kind = attempt.backend.resource
    owner = reference(kind.api_version, kind.kind, job["metadata"])
    metadata = {**companion.manifest["metadata"], "ownerReferences": [owner]}
    body = {**companion.manifest, "metadata": metadata}
    until = time.monotonic() + _COLLECTION_SECONDS
    for pause in backoff():
        there = _created_or_found(attempt.patient, companion, body)
        if there and owns(job, there):
            return
        if there and (not _was_owned(there, owner) or time.monotonic() > until):
            title = f"{companion.resource.kind} {attempt.job.namespace}/{there['metadata']['name']}"
            raise NameTaken(
                what=f"the name that {attempt.title} needs is taken",
                which=title,
                seen="an object of this name exists that does not belong to the job; it was left alone",
                do="Give this run another ID, or see whose it is: kubectl get -o yaml "
                f"{companion.resource.plural} -n {attempt.job.namespace} {there['metadata']['name']}",
            )
        time.sleep(pause)


def _created_or_found(cluster: Cluster, companion: Companion, body: dict[str, Any]) -> Object | None:
    """The companion, created or as it exists; None if an existing one has just been deleted."""
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
    """Whether its owner is a removed job of this name: the cluster will delete it."""
    owners = there["metadata"].get("ownerReferences") or ()
    return any((item["kind"], item["name"]) == (owner["kind"], owner["name"]) for item in owners)
