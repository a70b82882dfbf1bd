"""What a job belongs to, and jobs whose launcher could not clean up.

A job is deleted with the workflow or the pod that owns it. The others are found by their labels, and removed
when their run is over.

Nobody else's are touched: a job is ddpipe's only if its name is the hash of the owner in its annotation.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ddpipe.errors import LaunchError, NotRemoved, listed
from ddpipe.jobs import experiment
from ddpipe.jobs.backend import all_backends
from ddpipe.jobs.job import KEEP, MANAGED, PIPELINE, RUN, Owner, label_value, owner_of
from ddpipe.jobs.options import Keep
from ddpipe.jobs.status import Phase, true_conditions
from ddpipe.kube.cluster import ApiError, Cluster, Refused, is_served, pages, readable
from ddpipe.kube.resources import JOBS, PODS, WORKFLOWS, Object, Resource
from ddpipe.kube.retrying import delete
from ddpipe.launching.logs import progress_of
from ddpipe.processes.reports import Reported

# Seconds for which a request is retried while the server is busy or away.
_PATIENCE = 20.0
# What MLflow's variables may say in the open.
_PLAIN = re.compile("MLFLOW_(EXPERIMENT_(ID|NAME)|RUN_ID|TRACKING_(AUTH|INSECURE_TLS|URI)|WORKSPACE)")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Controllers that outlive any run: a notebook server's, say.
_SERVICES = {"ReplicaSet", "StatefulSet", "DaemonSet"}
# The kinds of objects that runs are, and the phases or conditions of those that are over.
_RUNS = {resource.kind: resource for resource in (WORKFLOWS, JOBS, PODS)}
_OVER = {"Succeeded", "Failed", "Error", "Complete"}
# The workflow of a pod, the node that it is, and which attempt at that.
_WORKFLOW, _NODE = "workflows.argoproj.io/workflow", "workflows.argoproj.io/node-name"
_ATTEMPT = re.compile(r"\(\d+\)$")
# Argo's controller sets this label when it has finished a workflow.
_RUNNING = {"labelSelector": "workflows.argoproj.io/completed!=true"}
# Up to so many workflows are read one by one, rather than all that run in one list.
_FEW = 3
_AT_ONCE = 8
"""Logs that are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job on the cluster that ddpipe created."""

    kind: str
    name: str
    path: str
    uid: str
    owner: Owner
    created: str
    state: str  # its latest condition; Active if it has none
    run_over: bool | None
    kept: bool
    progress: Reported | None = None  # only where it was asked for


def list_jobs(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    most: int | None = None,
) -> list[FoundJob]:
    """All jobs that ddpipe created in a namespace, of every kind, searches with Katib among them."""
    labels = {MANAGED: "ddpipe"}
    labels |= {PIPELINE: label_value(pipeline)} if pipeline is not None else {}
    labels |= {RUN: label_value(run)} if run is not None else {}
    query = {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())}
    found: list[tuple[FoundJob, Object | None]] = []
    refusals: list[Refused] = []
    every = [*((one.resource, one.phase) for one in all_backends()), (experiment.RESOURCE, experiment.phase)]
    kinds = [(resource, phase) for resource, phase in every if is_served(cluster, resource)]
    for resource, phase in kinds:
        try:
            for page in pages(cluster.get, resource.path(namespace), query):
                found += (
                    _found(resource, phase(item), item, owner) for item in page if (owner := owner_of(item))
                )
        except Refused as error:
            # An account that may not use a kind has no jobs of that kind.
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            refusals.append(error)
    if refusals and len(refusals) == len(kinds):
        raise refusals[0]
    if run is not None:
        # A label holds 63 characters and not all kinds of them: the annotation decides.
        return [job for job, _ in found if job.owner.run_id == run]
    over = runs_over(cluster, namespace, [belongs for _, belongs in found if belongs], most)
    return [replace(job, run_over=over[belongs["uid"]] if belongs else None) for job, belongs in found]


def with_progress(cluster: Cluster, namespace: str, jobs: Sequence[FoundJob], most: int) -> list[FoundJob]:
    """The same jobs; of the newest that may still run, at most so many, with their progress."""
    kinds = {one.resource.kind: one for one in all_backends()}
    active = [job for job in jobs if job.kind in kinds and job.state not in _OVER]
    newest = sorted(active, key=lambda job: job.created)[-most:]

    def read(job: FoundJob) -> tuple[str, Reported | None]:
        return job.uid, progress_of(cluster, namespace, kinds[job.kind], job.name)

    with ThreadPoolExecutor(_AT_ONCE) as readers:
        found = dict(readers.map(read, newest))
    return [replace(job, progress=found.get(job.uid)) for job in jobs]


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep."""

    removed: list[FoundJob]
    problems: list[str]

    def complete(self) -> list[FoundJob]:
        """The removed jobs, if no other had to be removed."""
        if self.problems:
            raise NotRemoved(
                what="not all jobs whose run is over could be removed",
                which=f"{len(self.problems)} of {len(self.problems) + len(self.removed)}",
                seen=listed(self.problems),
                do="Give this account the right to delete them, then run again: ddpipe jobs clean-up",
            )
        return self.removed


def sweep(
    cluster: Cluster,
    namespace: str,
    *,
    pipeline: str | None = None,
    run: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    most: int | None = None,
) -> Swept:
    """Remove orphans; each request is retried for a while if the server is busy."""
    patient = cluster.patient(_PATIENCE)
    swept = Swept([], [])
    for job in list_jobs(patient, namespace, pipeline=pipeline, run=run, most=most):
        if job.kept or (run is None and job.run_over is not True):
            continue
        title = f"{job.kind} {namespace}/{job.name}"
        try:
            delete(patient, job.path, job.uid)
        except (Refused, LaunchError) as error:
            cause = error.seen if isinstance(error, LaunchError) else str(error)
            swept.problems.append(f"{title} of run {job.owner.run_id}: {cause}")
            say(f"could not remove {title}, whose run {job.owner.run_id} is over: {cause}")
        else:
            swept.removed.append(job)
            say(f"removed {title}: run {job.owner.run_id} is over")
    return swept


def _found(resource: Resource, phase: Phase, item: Object, owner: Owner) -> tuple[FoundJob, Object | None]:
    """A job, and the reference to the run that it belongs to."""
    metadata = item["metadata"]
    keep = metadata["annotations"].get(KEEP, Keep.NEVER)  # of a newer ddpipe, it may have another value
    job = FoundJob(
        kind=resource.kind,
        name=metadata["name"],
        path=resource.path(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        owner=owner,
        created=metadata["creationTimestamp"],
        state=[phase.capitalize(), *true_conditions(item)][-1],
        run_over=None,
        kept=phase.is_terminal and (keep not in {*Keep} or Keep(keep).keeps(failed=phase is Phase.FAILED)),
    )
    return job, run_of(item)


def own_pod_path() -> str | None:
    """The path of the pod that this process runs in; None outside of a cluster."""
    # The downward API's POD_NAME and POD_NAMESPACE, or Kubeflow Pipelines' KFP_POD_NAME, come first.
    inside = _NAMESPACE.exists()
    name = (
        os.environ.get("POD_NAME")
        or os.environ.get("KFP_POD_NAME")
        or (socket.gethostname() if inside else "")
    )
    namespace = os.environ.get("POD_NAMESPACE") or (_NAMESPACE.read_text().strip() if inside else "")
    return PODS.path(namespace, name) if name and namespace else None


def tracker_variables(cluster: Cluster) -> list[Mapping[str, Any]]:
    """MLflow's variables of this process, for the pods of its job: credentials only as secrets' keys."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        return []
    path, own = own_pod_path(), None
    with suppress(ApiError):
        own = readable(lambda: cluster.get(path)) if path else None
    containers = own["spec"]["containers"] if own else ()
    entries = [entry for one in containers for entry in one.get("env", ()) if "valueFrom" in entry]
    referred = {entry["name"]: entry for entry in entries if entry["name"].startswith("MLFLOW_")}
    plain = {name: value for name, value in os.environ.items() if _PLAIN.fullmatch(name) and "@" not in value}
    return list({**{name: {"name": name, "value": plain[name]} for name in plain}, **referred}.values())


def failed_steps(cluster: Cluster) -> list[str] | None:
    """Why steps of this pod's workflow failed, by their last pods; None outside of a workflow."""
    path = own_pod_path() or ""
    own = readable(lambda: cluster.get(path)) if path else None
    workflow = (own["metadata"].get("labels") or {}).get(_WORKFLOW) if own else None
    if not workflow:
        return None
    latest: dict[str, Object] = {}
    for page in pages(cluster.get, path.rpartition("/")[0], {"labelSelector": f"{_WORKFLOW}={workflow}"}):
        for pod in page:
            node = (pod["metadata"].get("annotations") or {}).get(_NODE, pod["metadata"]["name"])
            step, created = _ATTEMPT.sub("", node), pod["metadata"]["creationTimestamp"]
            if step not in latest or latest[step]["metadata"]["creationTimestamp"] <= created:
                latest[step] = pod
    return [_cause(step, pod) for step, pod in latest.items() if pod["status"].get("phase") == "Failed"]


def _cause(step: str, pod: Object) -> str:
    """What its containers say about their end, else what Kubernetes says."""
    ends = [item["state"].get("terminated") or {} for item in pod["status"].get("containerStatuses") or ()]
    said = [end["message"] for end in ends if end.get("exitCode") and end.get("message")]
    codes = [f"exit code {end['exitCode']} ({end.get('reason', '')})" for end in ends if end.get("exitCode")]
    seen = pod["status"].get("message") or pod["status"].get("reason")
    name = step.removesuffix(".executor").rpartition(".")[2]
    return f"{name}: {[*said, *([seen] if seen else []), *codes, 'failed'][0]}"


def owner_references(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """The owners of a new job, with which it is deleted: the run's workflow, else this very pod, if known."""
    path = own_pod_path()
    # An owner in another namespace counts as absent, and the job would be collected at once.
    if path is None or not path.startswith(PODS.path(namespace) + "/"):
        return []
    pod = readable(lambda: cluster.get(path))
    if pod is None:
        return []
    owners = pod["metadata"].get("ownerReferences") or []
    controller = next((owner for owner in owners if owner.get("controller")), None)
    if controller is None:
        return [reference("v1", "Pod", pod["metadata"])]
    if controller["kind"] in _SERVICES:
        return []
    return [reference(controller["apiVersion"], controller["kind"], controller)]


def reference(version: str, kind: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """The owner reference to an object."""
    return {"apiVersion": version, "kind": kind, "name": named["name"], "uid": named["uid"]}


def run_of(item: Object) -> Object | None:
    """The reference to the run that a job or pod belongs to; None if it has none that can be judged."""
    owners = item["metadata"].get("ownerReferences") or []
    return owners[0] if owners and owners[0]["kind"] in _RUNS else None


def runs_over(
    cluster: Cluster, namespace: str, runs: Iterable[Object], most: int | None = None
) -> dict[str, bool | None]:
    """Whether runs are over, by their uid; None where that cannot be known."""
    # Each run is read once, however many jobs it has, and many workflows are read in one list of those that
    # run: 200 launchers that look for each other's leftovers would send 40,000 requests otherwise.
    left = {run["uid"]: run for run in runs}
    over: dict[str, bool | None] = dict.fromkeys(left)
    workflows = {uid for uid, run in left.items() if run["kind"] == WORKFLOWS.kind}
    running = _running(cluster, namespace) if len(workflows) > _FEW else None
    if running is not None:
        over |= {uid: uid not in running for uid in workflows}
        left = {uid: run for uid, run in left.items() if uid not in workflows}
    chosen = list(left)
    if most is not None and len(chosen) > most:
        chosen = random.Random().sample(chosen, most)
    return over | {uid: _is_over(cluster, namespace, left[uid]) for uid in chosen}


def _running(cluster: Cluster, namespace: str) -> set[str] | None:
    """The uids of the workflows that are not over; None if this account may not list them."""
    listed = pages(cluster.get_metadata, WORKFLOWS.path(namespace), _RUNNING)
    return readable(lambda: {item["metadata"]["uid"] for page in listed for item in page})


def _is_over(cluster: Cluster, namespace: str, reference: Object) -> bool | None:
    try:
        run = cluster.get(_RUNS[reference["kind"]].path(namespace, reference["name"]))
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return True
        if error.status == HTTPStatus.FORBIDDEN:
            return None
        raise
    if run["metadata"]["uid"] != reference["uid"]:
        return True
    # How Argo and Kubeflow Pipelines ask for the termination of a workflow: its pods have no more to do.
    spec = run.get("spec", {})
    if reference["kind"] == WORKFLOWS.kind and (
        spec.get("shutdown") or spec.get("activeDeadlineSeconds") == 0
    ):
        return True
    return run.get("status", {}).get("phase") in _OVER or not _OVER.isdisjoint(true_conditions(run))
