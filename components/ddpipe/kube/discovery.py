"""What kinds of objects a cluster knows."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import Object, Resource


def is_served(cluster: Cluster, resource: Resource) -> bool:
    """Whether the cluster knows this kind of object."""
    group = readable(lambda: cluster.get(resource.root))
    return group is not None and any(item["name"] == resource.plural for item in group["resources"])


def spec_schema(cluster: Cluster, resource: Resource, *, needed: bool = False) -> Object | None:
    """What the cluster's CRD knows of `spec`; None if this account may not read it, or it is built in.

    Args:
        cluster: Where.
        resource: The kind of object.
        needed: Look into the description of the whole API group too: about 1 MB, which everybody may read.
    """
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.full_name}"
    crd = readable(lambda: cluster.get(path)) or {}
    for version in crd.get("spec", {}).get("versions", ()):
        if version["name"] == resource.version:
            schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"].get("properties")
            return schema
    return _described(cluster, resource) if needed else None


def _described(cluster: Cluster, resource: Resource) -> Object | None:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    described = readable(lambda: cluster.get(f"/openapi/v3{resource.root}")) or {}
    for schema in described.get("components", {}).get("schemas", {}).values():
        if kind in schema.get("x-kubernetes-group-version-kind", ()):
            found: Object = schema["properties"]["spec"]["properties"]
            return found
    return None


def readable(read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What was read; None if this account may not read it, or there is nothing."""
    try:
        return read()
    except Refused as error:
        if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            return None
        raise
