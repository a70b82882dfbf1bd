"""The labels and annotations by which a launcher recognizes its own jobs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.owner import Owner

MANAGED = "app.kubernetes.io/managed-by"
JOB = "ddpipe.dev/job"
PIPELINE = "ddpipe.dev/pipeline"
RUN = "ddpipe.dev/run"
OWNER = "ddpipe.dev/owner"
SPEC = "ddpipe.dev/spec"
KEEP = "ddpipe.dev/keep"
NODES = "ddpipe.dev/nodes"
REQUESTED_NODES = "ddpipe.dev/wished-nodes"
WORKED = "ddpipe.dev/worked-seconds"
QUEUE = "kueue.x-k8s.io/queue-name"


def label_value(text: str) -> str:
    """`text` as a label value: what is not allowed becomes "-", and it is short enough."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def labels_of(job: TrainingJob) -> dict[str, str]:
    """What finds a job: listings and watches select by these."""
    return {
        **job.labels,
        MANAGED: "ddpipe",
        JOB: job.name,
        PIPELINE: label_value(job.owner.pipeline),
        RUN: label_value(job.owner.run_id),
    }


def metadata_of(job: TrainingJob) -> dict[str, Any]:
    """The metadata of the object that stands for a job; Kueue reads the queue's name from a label."""
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {**labels_of(job), **({QUEUE: job.queue} if job.queue else {})},
        "annotations": dict(job.annotations),
    }


def spec_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of what was requested, before a server adds its defaults."""
    return hashlib.sha256(json.dumps(manifest["spec"], sort_keys=True).encode()).hexdigest()[:16]


def annotate(manifest: dict[str, Any], job: TrainingJob) -> dict[str, Any]:
    """The manifest with its owner, keep policy and spec hash as annotations."""
    metadata = manifest["metadata"]
    own = {OWNER: job.owner.key, SPEC: spec_hash(manifest), KEEP: job.keep}
    annotated = {**metadata, "annotations": {**metadata.get("annotations", {}), **own}}
    return {**manifest, "metadata": annotated}


def owner_of(found: Mapping[str, Any]) -> Owner | None:
    """The step that created this object; None if ddpipe did not, even if its labels say so.

    Labels can be copied; a name that is the hash of the annotated owner was created here.
    """
    try:
        owner = Owner.of_key(found["metadata"]["annotations"][OWNER])
    except (KeyError, ValueError):
        return None
    return owner if owner.job_name == found["metadata"]["name"] else None
