"""Everything that can be known to be wrong before anything is created, all at once, each with its fix.

What this account may not read is not held against the job: the same fault then shows while it is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddpipe.errors import NotInstalled, PreflightFailed, listed
from ddpipe.launch.cluster import Cluster, Refused
from ddpipe.launch.diagnosis import name_of, operator_silent
from ddpipe.launch.job import TrainingJob, VolumeKind, quantity
from ddpipe.launch.outage import passes
from ddpipe.launch.status import Backend, Object, Resource

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SECRETS = Resource(group="", version="v1", plural="secrets", kind="Secret")
_CLAIMS = Resource(group="", version="v1", plural="persistentvolumeclaims", kind="PersistentVolumeClaim")
_CONFIGS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap")
_ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount")
_QUOTAS = Resource(group="", version="v1", plural="resourcequotas", kind="ResourceQuota")
_QUEUES = Resource(group="kueue.x-k8s.io", version="v1beta1", plural="localqueues", kind="LocalQueue")
_MOUNTED = {VolumeKind.CLAIM: _CLAIMS, VolumeKind.SECRET: _SECRETS, VolumeKind.CONFIG: _CONFIGS}
_EXISTS, _NOT_FOUND = 409, 404

Problem = str


def check(cluster: Cluster, job: TrainingJob, backend: Backend, manifest: Mapping[str, Any]) -> None:
    """Raise what would keep `job` from running.

    Raises:
        NotInstalled: The cluster does not know this kind of job.
        OperatorSilent: The operator's webhook does not answer.
        PreflightFailed: Everything else, listed.
    """
    _check_installed(cluster, job, backend.resource)
    problems = [
        *_missing_rights(cluster, job.namespace, backend.resource),
        *_dry_run(cluster, job, backend.resource, manifest),
        *_missing_objects(cluster, job),
        *_unfitting(cluster, job),
        *_beyond_quota(cluster, job),
    ]
    if problems:
        raise PreflightFailed(
            what="the job could not run, nothing was created",
            which=name_of(job, backend.resource.kind),
            seen=listed(problems),
            do="Mend these, then run the step again.",
        )


def schema_of(cluster: Cluster, resource: Resource) -> Object | None:
    """What the cluster's CRD knows of `spec`; None if this account may not read it."""
    name = f"{resource.plural}.{resource.group}"
    crd = _readable(lambda: cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"))
    for version in (crd or {}).get("spec", {}).get("versions", ()):
        if version["name"] == resource.version:
            schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"].get("properties")
            return schema
    return None


def _readable(read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What was read; None if this account may not read it, or there is nothing."""
    try:
        return read()
    except Refused as error:
        if error.status in {403, 404}:
            return None
        raise


def _check_installed(cluster: Cluster, job: TrainingJob, resource: Resource) -> None:
    group = _readable(lambda: cluster.get(f"/apis/{resource.group}/{resource.version}"))
    if group is None or not any(item["name"] == resource.plural for item in group["resources"]):
        raise NotInstalled(
            what="this cluster has no PyTorchJobs",
            which=f"{resource.plural}.{resource.group}/{resource.version}",
            seen="the API server does not know this kind of object",
            do="Install the Kubeflow Training Operator (1.4 to 1.9), or use another cluster to run "
            f"{job.namespace}/{job.name}.",
        )


def _missing_rights(cluster: Cluster, namespace: str, resource: Resource) -> Iterator[Problem]:
    """One line per missing rule, as it has to stand in the Role."""
    needed = [
        (resource.group, resource.plural, "", ("create", "get", "list", "watch", "delete")),
        ("", "pods", "", ("list", "watch")),
        ("", "pods", "log", ("get",)),
    ]
    for group, plural, sub, verbs in needed:
        where = {"namespace": namespace, "group": group, "resource": plural, "subresource": sub}
        missing = [verb for verb in verbs if not _may(cluster, **where, verb=verb)]
        if missing:
            name, words = f"{plural}/{sub}" if sub else plural, ", ".join(missing)
            rule = f'{{apiGroups: ["{group}"], resources: ["{name}"], verbs: [{words}]}}'
            yield f"this account may not {words} {name} in namespace {namespace}: add to its Role {rule}"


def _may(cluster: Cluster, **attributes: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool(cluster.create(_REVIEWS, review)["status"]["allowed"])


def _dry_run(
    cluster: Cluster, job: TrainingJob, resource: Resource, manifest: Mapping[str, Any]
) -> Iterator[Problem]:
    """What the API server, its schema and its webhooks say; unknown fields would be dropped in silence."""
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        cluster.create(resource.path(job.namespace), manifest, query)
    except Refused as error:
        if "failed calling webhook" in error.message:
            raise operator_silent(job, resource.kind, error.message) from error
        if error.status == _NOT_FOUND:
            yield f"namespace {job.namespace} does not exist: create it, or choose another"
        elif passes(error):
            raise
        elif error.status != _EXISTS and "cannot create resource" not in error.message:
            yield f"the cluster refuses the job: {error.message}"


def _missing_objects(cluster: Cluster, job: TrainingJob) -> Iterator[Problem]:
    named = [(_MOUNTED[volume.kind], volume.name) for volume in job.mounts]
    named += [(_SECRETS, name) for name in job.pull_secrets]
    named += [(_SECRETS, job.s3.secret)] if job.s3 else []
    named += [(_ACCOUNTS, job.service_account)] if job.service_account else []
    named += [(_QUEUES, job.queue)] if job.queue else []
    for resource, name in dict.fromkeys(named):
        if _is_missing(cluster, resource.path(job.namespace, name)):
            where = f"{resource.kind} {name} does not exist in namespace {job.namespace}"
            yield f"{where}: create it, or correct the name"
    priority = f"/apis/scheduling.k8s.io/v1/priorityclasses/{job.priority_class}"
    if job.priority_class and _is_missing(cluster, priority):
        yield f"priority class {job.priority_class} does not exist: see kubectl get priorityclasses"


def _is_missing(cluster: Cluster, path: str) -> bool:
    try:
        cluster.get(path)
    except Refused as error:
        if error.status == _NOT_FOUND:
            return True
        if error.status != 403:  # noqa: PLR2004 - may not look
            raise
    return False


def _unfitting(cluster: Cluster, job: TrainingJob) -> Iterator[Problem]:
    """Whether any node, even an empty one, could take one replica."""
    nodes = None if job.autoscaling else _readable(lambda: cluster.get("/api/v1/nodes"))
    if nodes is None:
        return
    candidates = [node for node in nodes["items"] if _selected(job, node)]
    if not candidates:
        selector = ", ".join(f"{key}={value}" for key, value in job.node_selector.items())
        yield f"no node has the labels {selector}: see kubectl get nodes --show-labels"
    elif not any(_fits(job, node) for node in candidates):
        yield (
            "; ".join(_lacking(job, candidates))
            + ": ask for less per pod, or say that nodes can be added (autoscaling)"
        )


def _selected(job: TrainingJob, node: Object) -> bool:
    labels = node["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in job.node_selector.items())


def _allocatable(node: Object, resource: str) -> float:
    return quantity(node["status"].get("allocatable", {}).get(resource, "0"))


def _fits(job: TrainingJob, node: Object) -> bool:
    return all(quantity(asked) <= _allocatable(node, name) for name, asked in job.per_pod.items())


def _lacking(job: TrainingJob, nodes: Sequence[Object]) -> Iterator[str]:
    """Which resource is short; together they can be, though each alone is not."""
    short = False
    for name, asked in job.per_pod.items():
        largest = max(nodes, key=lambda node: _allocatable(node, name))
        if quantity(asked) > _allocatable(largest, name):
            short = True
            offered = largest["status"].get("allocatable", {}).get(name, "0")
            yield f"no node can ever take a pod: {asked} of {name} asked, the largest node has {offered}"
    if not short:
        asked = ", ".join(f"{value} of {name}" for name, value in job.per_pod.items())
        yield f"no single node can ever take a pod with {asked} together"


def _beyond_quota(cluster: Cluster, job: TrainingJob) -> Iterator[Problem]:
    quotas = _readable(lambda: cluster.get(_QUOTAS.path(job.namespace)))
    for quota in (quotas or {}).get("items", ()):
        hard, used = quota["status"].get("hard", {}), quota["status"].get("used", {})
        for name, asked in _total(job).items():
            if name not in hard:
                continue
            free = quantity(hard[name]) - quantity(used.get(name, "0"))
            if asked > free:
                which = f"quota {quota['metadata']['name']} of namespace {job.namespace}"
                left = f"leaves {free:g} of {name} ({used.get(name, '0')} of {hard[name]} in use)"
                yield f"{which} {left}, the job needs {asked:g}: ask for less, wait, or raise it"


def _total(job: TrainingJob) -> dict[str, float]:
    """What the whole job counts for, by the names that quotas use."""
    total: dict[str, float] = {"pods": job.nodes, "count/pods": job.nodes}
    for name, asked in job.per_pod.items():
        amount = quantity(asked) * job.nodes
        total |= {f"requests.{name}": amount, f"limits.{name}": amount}
        if name in {"cpu", "memory"}:
            total[name] = amount
    return total
