"""The kind of job that suits cluster, account and job; and all that is wrong before anything is created.

What this account may not read is never a problem of the job: the same fault then shows while it is followed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from ddpipe.errors import NotInstalled, ParameterError, PreflightFailed, listed
from ddpipe.jobs import BACKENDS, CONTAINER
from ddpipe.jobs.backend import Backend, backend
from ddpipe.jobs.job import TrainingJob, owner_of
from ddpipe.jobs.options import NO_SECRET, Preflight, VolumeKind
from ddpipe.kube.capacity import quantity, requests, shortages
from ddpipe.kube.cluster import Cluster, Refused, is_served, may, needed, readable, spec_schema
from ddpipe.kube.resources import (
    ACCOUNTS,
    CLAIMS,
    CONFIGS,
    JOBS,
    PODS,
    QUEUES,
    QUOTAS,
    SECRETS,
    SNAPSHOTS,
    Resource,
)
from ddpipe.kube.retrying import with_retries
from ddpipe.launching.advice import Cause, advice, name_of
from ddpipe.launching.diagnosis import webhook_silent
from ddpipe.launching.nodes import nodes_of
from ddpipe.parameters import AUTO

_MOUNTED = {VolumeKind.CLAIM: CLAIMS, VolumeKind.SECRET: SECRETS, VolumeKind.CONFIG: CONFIGS}
_PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_ETCD_BYTES = 1.5 * 2**20
_ARGUMENT_BYTES = 128 * 2**10 - 1
_SPARE_MEMORY = 1.1  # for torchrun itself, whose libraries are counted with each process


def check(cluster: Cluster, job: TrainingJob, backend: Backend, manifest: Mapping[str, Any]) -> list[str]:
    """What the user should know before `job` is created; each request is retried while the server is away."""
    patient = cluster.patient(job.limits.outage)
    resource = backend.resource
    if not is_served(patient, resource):
        raise NotInstalled(
            what=f"this cluster has no {resource.kind}s",
            which=f"{resource.full_name}/{resource.version}",
            seen="the API server does not know this kind of object",
            do=f"{backend.controller.install}, or use another cluster to run {job.namespace}/{job.name}.",
        )
    nodes = nodes_of(patient, job, backend)
    problems = [
        *missing_rights(patient, job, backend),
        *_too_large(manifest),
        *_dry_run(cluster, job, backend, manifest),
        *_dry_run_of_pod(patient, job, backend),
        *_missing_objects(patient, job, backend),
        *_unusable_snapshots(patient, job),
        *nodes.problems,
        *beyond_quota(patient, job, backend),
    ]
    if problems and job.preflight != Preflight.WARN:
        raise _failed(job, backend, problems, "; with `preflight` warn, the job is created anyway")
    return [*problems, *nodes.remarks, *_scarce_memory(job, backend)]


def check_rights(cluster: Cluster, job: TrainingJob, backend: Backend) -> None:
    """Check that this account has all rights that launching needs."""
    problems = list(missing_rights(cluster.patient(job.limits.outage), job, backend))
    if problems:
        raise _failed(job, backend, problems)


def _failed(job: TrainingJob, backend: Backend, problems: Sequence[str], hint: str = "") -> PreflightFailed:
    return PreflightFailed(
        what="the job could not run, nothing was created",
        which=name_of(job, backend),
        seen=listed(problems),
        do=advice(Cause.UNFIT, job, backend, hint=hint),
    )


def missing_rights(cluster: Cluster, job: TrainingJob, backend: Backend) -> Iterator[str]:
    """One line per missing rule, as the Role must have it."""
    namespace, owned_objects = job.namespace, (owned.resource for owned in backend.owned_objects(job))
    for right in needed(backend.resource, *owned_objects):
        missing = [verb for verb in right.verbs if not may(cluster, namespace, right, verb)]
        if missing:
            words = ", ".join(missing)
            rule = f'{{apiGroups: ["{right.resource.group}"], resources: ["{right.name}"], verbs: [{words}]}}'
            may_not = f"this account may not {words} {right.name} in namespace {namespace}"
            yield f"{may_not}: add to its Role {rule}"


def _too_large(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What etcd cannot store, which no dry run reaches, or Linux cannot pass to a program."""
    size, leaves = len(json.dumps(manifest)), sorted(_texts(manifest), reverse=True)
    if size > _ETCD_BYTES:
        largest = ", ".join(f"{path} ({length / 2**20:.2f} MiB)" for length, path in leaves[:3])
        stored = f"the job's object has {size / 2**20:.1f} MiB, more than the 1.5 that a cluster stores"
        yield f"{stored}, most of it in {largest}: put large values into the image or the object store"
    for length, path in leaves:
        if length >= _ARGUMENT_BYTES and re.search(r"\.(env|command|args)\.", path):
            yield f"{path} has {length / 2**10:.0f} KiB: Linux passes a program no more than 128 in one value"


def _texts(value: Any, path: str = "") -> Iterator[tuple[int, str]]:  # noqa: ANN401 - JSON
    """The bytes of every text, and where it is: items of a list by their names."""
    items = list(value.items()) if isinstance(value, Mapping) else []
    if isinstance(value, list):
        items = [
            (one.get("name", at) if isinstance(one, Mapping) else at, one) for at, one in enumerate(value)
        ]
    for name, item in items:
        yield from _texts(item, f"{path}.{name}".lstrip("."))
    if isinstance(value, str):
        yield len(value.encode()), path


def _dry_run(
    cluster: Cluster, job: TrainingJob, backend: Backend, manifest: Mapping[str, Any]
) -> Iterator[str]:
    """What the API server, its schema and its webhooks reject; unknown fields would be dropped silently."""

    def created(resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            return cluster.create(resource.path(job.namespace), body, query)
        except Refused as error:
            # An HTTP 500, but no outage: it is judged before the request is retried as one.
            if silent := webhook_silent(job, backend, error):
                raise silent from error
            raise

    try:
        made = with_retries(partial(created, backend.resource, manifest), job.limits.outage)
        if dropped := ", ".join(_dropped(manifest["spec"], made["spec"], "spec")):
            where = f"{backend.resource.full_name} of this cluster have no field {dropped}, and would drop it"
            yield f"{where}: update the operator, or let this account read the CRD, to fit the job to it"
        for owned in backend.owned_objects(job):
            with_retries(partial(created, owned.resource, owned.manifest), job.limits.outage)
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            yield f"namespace {job.namespace} does not exist: create it, or choose another"
        elif error.status != HTTPStatus.CONFLICT and "cannot create resource" not in error.message:
            yield f"the cluster rejects the job: {error.message}"


def _dry_run_of_pod(cluster: Cluster, job: TrainingJob, backend: Backend) -> Iterator[str]:
    """What would reject the pods, of which the job has a template only: policies, limits, webhooks."""
    # An account that may not create pods has them judged as the template of a Job: their fields, at least.
    pod, name = backend.pod(job), {"name": f"{job.name}-0", "namespace": job.namespace}
    body = {**pod, "metadata": {**pod["metadata"], **name}}
    inner = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    for resource, sent in ((PODS, body), (JOBS, {"metadata": name, "spec": {"template": inner}})):
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        try:
            cluster.create(resource.path(job.namespace), {**kind, **sent}, {"dryRun": "All"})
        except Refused as error:
            if "cannot create resource" in error.message:
                continue
            # Quotas are judged for the whole job, and a webhook may not take part in a dry run. Of a Job
            # only the fields count: it is not what will be created.
            passing = re.search("exceeded quota|dry ?run|failed calling webhook", error.message)
            is_judged = error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT} and not passing
            if is_judged and (resource is PODS or error.status == HTTPStatus.UNPROCESSABLE_ENTITY):
                yield f"the cluster rejects the job's pods: {error.message}"
        return


def _dropped(sent: Any, kept: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """The fields that a server before 1.25, which has no strict validation, drops, except empty values."""
    if isinstance(sent, Mapping) and isinstance(kept, Mapping):
        for name, value in sent.items():
            if name in kept:
                yield from _dropped(value, kept[name], f"{path}.{name}")
            elif value:
                yield f"{path}.{name}"
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, (item, other) in enumerate(zip(sent, kept, strict=True)):
            yield from _dropped(item, other, f"{path}.{number}")


def _missing_objects(cluster: Cluster, job: TrainingJob, backend: Backend) -> Iterator[str]:
    named = [(_MOUNTED[volume.kind], volume.name) for volume in job.mounts if volume.kind in _MOUNTED]
    named += [(SECRETS, name) for name in job.pull_secrets]
    named += [(SECRETS, job.s3_secret)] if job.s3_secret not in {"", NO_SECRET} else []
    named += [(ACCOUNTS, job.service_account)] if job.service_account else []
    named += [(QUEUES, job.queue)] if job.queue else []
    for resource, name in dict.fromkeys(named):
        if _is_missing(cluster, resource.path(job.namespace, name)):
            where = f"{resource.kind} {name} does not exist in namespace {job.namespace}"
            yield f"{where}: create it, or correct the name"
    priority = backend.pod(job)["spec"].get("priorityClassName")
    if priority and _is_missing(cluster, f"{_PRIORITY_CLASSES}/{priority}"):
        yield f"priority class {priority} does not exist: see kubectl get priorityclasses"


def _unusable_snapshots(cluster: Cluster, job: TrainingJob) -> Iterator[str]:
    wanted = {volume.name: volume for volume in job.mounts if volume.kind is VolumeKind.SNAPSHOT}
    if wanted and not is_served(cluster, SNAPSHOTS):
        yield (
            f"this cluster has no volume snapshots ({SNAPSHOTS.full_name}): mount a claim, or have a storage "
            "driver with snapshots installed"
        )
        return
    for name, volume in wanted.items():
        where = f"{SNAPSHOTS.kind} {name} in namespace {job.namespace}"
        if problem := _unusable(cluster, SNAPSHOTS.path(job.namespace, name), volume.size):
            yield f"{where} {problem}"


def _unusable(cluster: Cluster, path: str, size: str) -> str:
    """Why no volume of this size can be created from a snapshot; empty if it can, or may not be read."""
    if _is_missing(cluster, path):
        return "does not exist: create it, or correct the name"
    status = (readable(lambda: cluster.get(path)) or {"status": {"readyToUse": True}}).get("status", {})
    if not status.get("readyToUse"):
        return f"is not ready to use: {status.get('error', {}).get('message', 'it is still being taken')}"
    least = status.get("restoreSize", "0")
    return f"needs {least}, more than the {size} requested" if quantity(least) > quantity(size) else ""


def _is_missing(cluster: Cluster, path: str) -> bool:
    try:
        cluster.get(path)
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return True
        if error.status != HTTPStatus.FORBIDDEN:
            raise
    return False


def beyond_quota(cluster: Cluster, job: TrainingJob, backend: Backend) -> Iterator[str]:
    """What the namespace's quotas have too little of, for all of the job."""
    found = readable(lambda: cluster.get(QUOTAS.path(job.namespace)))
    kinds = [backend.resource, *(owned.resource for owned in backend.owned_objects(job))]
    pod, objects = backend.pod(job)["spec"], {f"count/{kind.full_name}": 1.0 for kind in kinds}
    for quota in (found or {}).get("items", ()):
        for shortage in shortages(quota, pod, job.nodes, objects):
            yield f"quota {quota['metadata']['name']} of namespace {job.namespace} {shortage}"


def _scarce_memory(job: TrainingJob, backend: Backend) -> Iterator[str]:
    """That the pods may not have the memory that the last training took."""
    containers = [one for one in backend.pod(job)["spec"]["containers"] if one["name"] == CONTAINER]
    limit = requests({"containers": containers}, "limits").get("memory", math.inf)
    needed = _SPARE_MEMORY * job.peak_memory * job.processes_per_pod
    if limit < needed:
        peak, needs, has = (f"{amount / 2**30:.3g}Gi" for amount in (job.peak_memory, needed, limit))
        yield (
            "the pods may run out of memory: a process of the last training of this network on this dataset "
            f"had up to {peak}, so {job.processes_per_pod} per pod need {needs} with a tenth to spare, and "
            f"their limit is {has}; request more memory, unless this training is smaller"
        )


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
    """The first of `kinds` that can run the job here; prints which, and why those before it were rejected."""
    # A retry takes the backend of the earlier attempt, even if the cluster has changed since.
    if job.backend != AUTO:
        return kinds[job.backend]
    cluster = cluster.patient(job.limits.outage)
    served = {name: kind for name, kind in kinds.items() if is_served(cluster, kind.resource)}
    for name, kind in served.items():
        found = readable(partial(cluster.get, kind.resource.path(job.namespace, job.name)))
        if found is not None and owner_of(found) == job.owner:
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
