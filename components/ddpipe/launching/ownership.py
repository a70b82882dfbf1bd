"""Which run a job belongs to: the one that this launcher is a step of; and whether such runs are over."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ddpipe.kube.cluster import Cluster, Refused
from ddpipe.kube.discovery import readable
from ddpipe.kube.listing import pages
from ddpipe.kube.resources import JOBS, PODS, WORKFLOWS, Object

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Controllers that outlive any run: a notebook server's, say.
_SERVICES = {"ReplicaSet", "StatefulSet", "DaemonSet"}
# The kinds of objects that runs are, and the phases or conditions of those that are over.
_RUNS = {resource.kind: resource for resource in (WORKFLOWS, JOBS, PODS)}
_OVER = {"Succeeded", "Failed", "Error", "Complete"}
# Argo's controller sets this label when it has finished a workflow.
_RUNNING = {"labelSelector": "workflows.argoproj.io/completed!=true"}
# Up to so many workflows are read one by one, rather than all that run in one list.
_FEW = 3


def own_pod_path() -> str | None:
    """The path of the pod that this process runs in; None outside of a cluster.

    The downward API's POD_NAME and POD_NAMESPACE, or Kubeflow Pipelines' KFP_POD_NAME, come first.
    """
    inside = _NAMESPACE.exists()
    name = (
        os.environ.get("POD_NAME")
        or os.environ.get("KFP_POD_NAME")
        or (socket.gethostname() if inside else "")
    )
    namespace = os.environ.get("POD_NAMESPACE") or (_NAMESPACE.read_text().strip() if inside else "")
    return PODS.path(namespace, name) if name and namespace else None


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
    """Whether runs are over, by their uid; None where that cannot be known.

    Each run is read once, however many jobs it has, and many workflows are read in one list of those that
    run: 200 launchers that look for each other's leftovers would send 40,000 requests otherwise.
    """
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
    found: set[str] = set()
    try:
        for page in pages(cluster.get_metadata, WORKFLOWS.path(namespace), _RUNNING):
            found |= {item["metadata"]["uid"] for item in page}
    except Refused as error:
        if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            return None
        raise
    return found


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
    status = run.get("status", {})
    conditions = {item["type"] for item in status.get("conditions") or () if item["status"] == "True"}
    return status.get("phase") in _OVER or bool(conditions & _OVER)
