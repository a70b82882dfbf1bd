"""Which kinds of objects a cluster serves, and which fields they have."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from ddpipe.kube.cluster import Cluster, Refused
from ddpipe.kube.resources import Object, Resource


def is_served(cluster: Cluster, resource: Resource) -> bool:
    """Whether the cluster serves this kind of object; False if this account may not see that."""
    group = readable(lambda: cluster.get(resource.root))
    return group is not None and any(item["name"] == resource.plural for item in group["resources"])


def spec_schema(cluster: Cluster, resource: Resource, *, needed: bool = False) -> Object | None:
    """The schema of `spec` in the cluster's CRD; None for a built-in kind or if it may not be read."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.full_name}"
    crd = readable(lambda: cluster.get(path)) or {}
    for version in crd.get("spec", {}).get("versions", ()):
        if version["name"] == resource.version:
            # Katib's CRDs say nothing about their fields.
            fields = version["schema"]["openAPIV3Schema"].get("properties", {})
            schema: Object | None = fields.get("spec", {}).get("properties")
            return schema
    return _openapi_schema(cluster, resource) if needed else None


def _openapi_schema(cluster: Cluster, resource: Resource) -> Object | None:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    document = readable(lambda: cluster.get(f"/openapi/v3{resource.root}")) or {}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if kind in schema.get("x-kubernetes-group-version-kind", ()):
            found: Object = schema["properties"]["spec"]["properties"]
            return found
    return None


def readable(read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The result of `read`; None if this account may not read it (403), or there is nothing (404)."""
    try:
        return read()
    except Refused as error:
        if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            return None
        raise
