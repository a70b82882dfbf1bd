"""Who a job belongs to on the cluster: the run that this launcher is a step of."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import JOBS, PODS, WORKFLOWS, Object

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Controllers that outlive any run: a notebook server's, say.
_SERVICES = {"ReplicaSet", "StatefulSet", "DaemonSet"}
# Where runs live, and the phases or conditions by which they are over.
_RUNS = {resource.kind: resource for resource in (WORKFLOWS, JOBS, PODS)}
_OVER = {"Succeeded", "Failed", "Error", "Complete"}


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
    """What the job goes with when it is deleted: the run's workflow, else this very pod, if known."""
    path = own_pod_path()
    # An owner in another namespace counts as absent, and the job would be collected at once.
    if path is None or not path.startswith(PODS.path(namespace) + "/"):
        return []
    try:
        pod = cluster.get(path)
    except Refused:
        return []
    owners = pod["metadata"].get("ownerReferences") or []
    controller = next((owner for owner in owners if owner.get("controller")), None)
    if controller is None:
        return [reference("v1", "Pod", pod["metadata"])]
    if controller["kind"] in _SERVICES:
        return []
    return [reference(controller["apiVersion"], controller["kind"], controller)]


def reference(version: str, kind: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """What makes an object belong to another one, of this metadata."""
    return {"apiVersion": version, "kind": kind, "name": named["name"], "uid": named["uid"]}


def run_is_over(cluster: Cluster, job: Object) -> bool | None:
    """Whether the run that a job belongs to has ended; None if that cannot be known."""
    owners = job["metadata"].get("ownerReferences") or []
    if not owners or owners[0]["kind"] not in _RUNS:
        return None
    owner = owners[0]
    try:
        run = cluster.get(_RUNS[owner["kind"]].path(job["metadata"]["namespace"], owner["name"]))
    except Refused as error:
        return True if error.status == HTTPStatus.NOT_FOUND else None
    if run["metadata"]["uid"] != owner["uid"]:
        return True
    status = run.get("status", {})
    conditions = {item["type"] for item in status.get("conditions") or () if item["status"] == "True"}
    return status.get("phase") in _OVER or bool(conditions & _OVER)
