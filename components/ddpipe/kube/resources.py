"""Kinds of Kubernetes objects: their paths in the API, and which fields the schema of a CRD knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def full_name(self) -> str:
        """Plural and group: the name of a CRD, and unambiguous for kubectl."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """Group and version, as objects name them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The URL path of the group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str, name: str = "") -> str:
        """The URL path of the collection, or of one object."""
        return f"{self.root}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


PODS = Resource(group="", version="v1", plural="pods", kind="Pod")
METRICS = Resource(group="metrics.k8s.io", version="v1beta1", plural="pods", kind="PodMetrics")
EVENTS = Resource(group="", version="v1", plural="events", kind="Event")
SECRETS = Resource(group="", version="v1", plural="secrets", kind="Secret")
SNAPSHOTS = Resource(
    group="snapshot.storage.k8s.io", version="v1", plural="volumesnapshots", kind="VolumeSnapshot"
)
CLAIMS = Resource(group="", version="v1", plural="persistentvolumeclaims", kind="PersistentVolumeClaim")
CONFIGS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap")
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount")
SERVICES = Resource(group="", version="v1", plural="services", kind="Service")
QUOTAS = Resource(group="", version="v1", plural="resourcequotas", kind="ResourceQuota")
QUEUES = Resource(group="kueue.x-k8s.io", version="v1beta1", plural="localqueues", kind="LocalQueue")
WORKFLOWS = Resource(group="argoproj.io", version="v1alpha1", plural="workflows", kind="Workflow")
JOBS = Resource(group="batch", version="v1", plural="jobs", kind="Job")


def owns(owner: Object, item: Object) -> bool:
    """Whether `item` belongs to this object, and not to another one of the same name."""
    references = item["metadata"].get("ownerReferences") or ()
    return any(reference["uid"] == owner["metadata"]["uid"] for reference in references)


def names(found: Object, event: Object) -> bool:
    """Whether an event is about this object."""
    return bool(event["involvedObject"].get("uid") == found["metadata"]["uid"])


def within(schema: Object, *names: str) -> Object:
    """The schema of a field of a field; of a list, that of its items."""
    for name in names:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    return schema


def fitted(value: Any, schema: Object) -> Any:  # noqa: ANN401 - any JSON value
    """`value` without the fields that `schema` does not know."""
    if isinstance(value, Mapping) and "properties" in schema:
        known = schema["properties"]
        return {name: fitted(item, known[name]) for name, item in value.items() if name in known}
    if isinstance(value, list) and "items" in schema:
        return [fitted(item, schema["items"]) for item in value]
    return value


def misfits(value: Any, schema: Object, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The fields of `value` that `schema` does not know, as path and value; items of lists by their name."""
    if isinstance(value, Mapping) and "properties" in schema:
        known = schema["properties"]
        for name, item in value.items():
            place = f"{path}.{name}" if path else name
            if name in known:
                yield from misfits(item, known[name], place)
            else:
                yield place, item
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            yield from misfits(item, schema["items"], f"{path}.{name}")
