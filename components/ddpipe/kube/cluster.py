"""What launching needs from an API server: its verbs, how a request fails, lists in pages, and the rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from ddpipe.kube.resources import PODS, Object, Resource

# A watch sends one object per line, and etcd stores none above 1.5 MB: anything longer is not from the API.
_LONGEST_LINE = 16 * 2**20

T = TypeVar("T")
Query = Mapping[str, str]
PAGE = 250  # objects in a page: of pods about 7 MB


class ApiError(Exception):
    """A request failed. For code only: users get a LaunchError."""

    retry_after = 0.0
    """Seconds that the server asks to wait before the next attempt; 0 if it does not say."""


class Unanswered(ApiError):
    """No usable answer: connection refused, timed out, cut in the middle, or not JSON."""


class Refused(ApiError):
    """The server answered with an error status."""

    def __init__(
        self, status: int, reason: str, message: str, named: str = "", retry_after: float = 0
    ) -> None:
        super().__init__(status, reason, message)
        self.status, self.reason, self.message, self.named = status, reason, message, named
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Status and message."""
        return f"HTTP {self.status} {self.message or self.reason}"


class Cluster(Protocol):
    """What launching needs from an API server; every method raises `Unanswered` or `Refused`.

    The one who calls decides how long a request is retried: by itself a cluster answers once, at once.
    """

    @property
    def namespace(self) -> str:
        """The default namespace."""

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Read an object or a list."""

    def get_metadata(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Read a list whose objects have nothing but their metadata."""

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        """Create an object; returns it with the server's defaults.

        Args:
            path: Of the collection, such as "/api/v1/namespaces/team-a/pods".
            body: The object.
            query: Parameters of the request, such as `dryRun`.
        """

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to an object; its other annotations stay.

        Args:
            path: Of the object.
            uid: The request is refused if the object has another one: it is a new object of the same name.
            annotations: Values by key.
        """

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object; refused with 409 if it has changed since its resourceVersion was read."""

    def delete(self, path: str, uid: str) -> None:
        """Delete the object if it still has this uid; what it owns is deleted in the background."""

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        """A watch or a log, line by line, until it ends.

        Args:
            path: Of the watched collection, or of a pod's log.
            query: Parameters of the request, such as `watch` or `follow`.
            idle: Longest silence in seconds; `Unanswered` after that.
        """

    def pieces(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        """The same as bytes, in pieces as they arrive.

        Args:
            path: As of `lines`.
            query: As of `lines`.
            idle: As of `lines`.
        """

    def patient(self, seconds: float) -> Cluster:
        """The same cluster, which retries each request for so many seconds while the server is away or busy.

        Then a request raises `ClusterUnreachable` or `Forbidden`. Streams are not retried.
        """

    def now(self) -> float:
        """The server's time, in seconds since 1970: this machine's clock may be hours off."""

    def spare(self) -> Cluster:
        """The same cluster over connections of its own."""


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in `pieces`, without their ends; a last one that has no end was cut, and is dropped."""
    # Every byte is looked at once, however small the pieces are.
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > _LONGEST_LINE:
            raise Unanswered(f"a line of more than {_LONGEST_LINE // 2**20} MiB")
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            parts, size = [others[-1]], len(others[-1])


def pages(
    read: Callable[[str, Query], dict[str, Any]], path: str, query: Query | None = None
) -> Iterator[list[Object]]:
    """The objects of a list in pages, of which the caller keeps what it needs."""
    token = ""
    while True:
        step = {"limit": str(PAGE)} | ({"continue": token} if token else {})
        page = read(path, {**(query or {}), **step})
        # An empty list of metadata is null.
        yield page["items"] or []
        token = page["metadata"].get("continue") or ""
        if not token:
            return


def is_served(cluster: Cluster, resource: Resource) -> bool:
    """Whether the cluster serves this kind of object; False if this account may not see that."""
    group = readable(lambda: cluster.get(resource.root))
    return group is not None and any(item["name"] == resource.plural for item in group["resources"])


def spec_schema(cluster: Cluster, resource: Resource, *, needed: bool = False) -> Object | None:
    """The schema of `spec` in the cluster's CRD; None for a built-in kind or if it may not be read."""
    # If it may not be read but is needed, the OpenAPI document has it, which is large.
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.full_name}"
    crd = readable(lambda: cluster.get(path)) or {}
    for version in crd.get("spec", {}).get("versions", ()):
        if version["name"] == resource.version:
            # Katib's CRDs say nothing about their fields.
            fields = version["schema"]["openAPIV3Schema"].get("properties", {})
            schema: Object | None = fields.get("spec", {}).get("properties")
            return schema
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    document = (readable(lambda: cluster.get(f"/openapi/v3{resource.root}")) if needed else None) or {}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if kind in schema.get("x-kubernetes-group-version-kind", ()):
            found: Object = schema["properties"]["spec"]["properties"]
            return found
    return None


def readable(read: Callable[[], T]) -> T | None:
    """The result of `read`; None if this account may not read it (403), or there is nothing (404)."""
    try:
        return read()
    except Refused as error:
        # 410: a list was given up by the server between two pages.
        if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            return None
        raise


@dataclass(frozen=True, slots=True)
class Right:
    """A rule of a Role."""

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """The resource as in a Role: pods/log."""
        return "/".join(filter(None, (self.resource.plural, self.subresource)))


def needed(resource: Resource, *owned: Resource) -> tuple[Right, ...]:
    """The rights without which no job of this kind can be launched."""
    return (
        Right(resource, ("create", "get", "list", "watch", "delete")),
        Right(PODS, ("list", "watch")),
        Right(PODS, ("get",), "log"),
        *(Right(item, ("create", "get")) for item in owned),
    )


def may(cluster: Cluster, namespace: str, right: Right, verb: str) -> bool:
    """Whether this account has a verb of a right in a namespace."""
    attributes = {
        "namespace": namespace,
        "group": right.resource.group,
        "resource": right.resource.plural,
        "subresource": right.subresource,
        "verb": verb,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
