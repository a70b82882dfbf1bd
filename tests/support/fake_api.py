"""An API server in memory, as faithful as launching needs it.

What it promises is tested by the cases of api_cases.py, on this server and on a real one.
"""

from __future__ import annotations

import copy
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic, time
from typing import Any

from ddpipe.kube.api import ApiError, Query, Refused, Unanswered, whole_lines
from ddpipe.kube.resources import Resource
from ddpipe.kube.retrying import with_retries

_DELETED_AT = "2026-01-01T00:01:00Z"
_FIRST_VERSION = 1000
"""Watches of older versions expire."""


@dataclass(frozen=True)
class Request:
    """One request: method (STREAM for a watch or a log), path and query."""

    method: str
    path: str
    query: Query = field(default_factory=dict)


Which = Callable[[Request], bool]


class FakeApiServer:
    """Objects by path, with versions, watches, selectors and preconditions.

    Attributes:
        namespace: The default one.
        asked: Every request so far.
        logs: By path, one list of lines, errors, and what is called with the seconds that a silence may
            last, per request; the last one is repeated. The log of the container before the last restart is
            at the path with "?previous".
        created: Called with each object that a client creates: stands for controllers.
        allowed: Whether an access review with these attributes is granted.
    """

    namespace = "team"

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.logs: dict[str, list[list[Any]]] = {}
        self.created: Callable[[dict[str, Any]], None] = lambda _: None
        self.allowed: Callable[[Mapping[str, str]], bool] = lambda _: True
        self._objects: dict[str, dict[str, Any]] = {}
        self._collections: set[str] = set()
        self._history: list[tuple[int, str, str, dict[str, Any]]] = []
        self._oldest = self._version = _FIRST_VERSION
        self._versions = itertools.count(_FIRST_VERSION + 1)
        self._faults: list[tuple[Which, Iterator[ApiError]]] = []
        self._generation = 0
        self._changed = Condition()
        self.time: float | None = None

    # --- what launching uses --------------------------------------------------------------------------

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        self._note(Request("GET", path, query or {}))
        with self._changed:
            if path in self._objects:
                return copy.deepcopy(self._objects[path])
            if path in self._collections:
                items = [item for at, item in self._objects.items() if _parent(at) == path]
                chosen = [copy.deepcopy(item) for item in items if _is_selected(item, query or {})]
                return _page(chosen, query or {}, self._version)
        raise _not_found(path)

    def get_metadata(self, path: str, query: Query | None = None) -> dict[str, Any]:
        listed = self.get(path, query)
        return {**listed, "items": [{"metadata": item["metadata"]} for item in listed["items"]] or None}

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        self._note(Request("POST", path, query or {}))
        if path.endswith("/selfsubjectaccessreviews"):
            return {"status": {"allowed": self.allowed(body["spec"]["resourceAttributes"])}}
        at = f"{path}/{body['metadata']['name']}"
        with self._changed:
            if path not in self._collections:
                raise _not_found(path)
            if at in self._objects:
                name = body["metadata"]["name"]
                raise Refused(409, "AlreadyExists", f'"{name}" already exists', name)
            if query and query.get("dryRun") == "All":
                return _completed(body, 0)
            made = self._store(at, "ADDED", body)
            orphan = self._is_orphan(made)
            if orphan:
                self._drop(at)
        if not orphan:
            self.created(copy.deepcopy(made))
        return copy.deepcopy(made)

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str]) -> None:
        self._note(Request("PATCH", path))
        with self._changed:
            metadata = self._found(path)["metadata"]
            if metadata["uid"] != uid:
                raise Refused(422, "Invalid", "metadata.uid: field is immutable", _name(path))
            changed = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}
            self._store(path, "MODIFIED", {**self._objects[path], "metadata": changed})

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._note(Request("PUT", path))
        with self._changed:
            found = self._found(path)["metadata"]
            if body["metadata"]["resourceVersion"] != found["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified", _name(path))
            kept = {key: found[key] for key in ("uid", "creationTimestamp")}
            return copy.deepcopy(
                self._store(path, "MODIFIED", {**body, "metadata": {**body["metadata"], **kept}})
            )

    def delete(self, path: str, uid: str) -> None:
        self._note(Request("DELETE", path))
        with self._changed:
            found = self._found(path)
            if found["metadata"]["uid"] != uid:
                raise Refused(409, "Conflict", "the UID in the precondition does not match", _name(path))
            if not found["metadata"].get("finalizers"):
                self._drop(path)
            elif "deletionTimestamp" not in found["metadata"]:
                self._store(path, "MODIFIED", _marked(found))

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        return whole_lines(self.pieces(path, query, idle))

    def pieces(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        for line in self._stream(path, query, idle):
            yield line + b"\n"

    def _stream(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        request = Request("STREAM", path, query)
        self._note(request)
        if query.get("watch") == "true":
            yield from self._watch(request, min(idle, 10))
            return
        at = path + ("?previous" if query.get("previous") else "")
        if at not in self.logs:
            raise Refused(400, "BadRequest", "previous terminated container not found")
        yield from self._log(at, query.get("sinceTime", ""), idle)

    def patient(self, seconds: float) -> Any:
        return _Patient(self, seconds)

    def spare(self) -> FakeApiServer:
        return self

    def now(self) -> float:
        """The time on this machine, until a test says otherwise."""
        return time() if self.time is None else self.time

    # --- what tests use -------------------------------------------------------------------------------

    def serve(self, *resources: Resource) -> None:
        """Serve these kinds of objects in the namespace; for cluster-wide ones see `know`."""
        for resource in resources:
            self._collections.add(resource.path(self.namespace))
            group = self._objects.setdefault(resource.root, {"metadata": {"uid": ""}, "resources": []})
            group["resources"].append({"name": resource.plural})

    def know(self, path: str, *items: dict[str, Any]) -> None:
        """Serve a collection of these objects at any path."""
        self._collections.add(path)
        for item in items:
            self.put(path, item)

    def describe(self, resource: Resource, **fields: Any) -> None:
        """Publish the fields of this kind's spec in the OpenAPI document."""
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        schema = {"properties": {"spec": {"properties": fields}}, "x-kubernetes-group-version-kind": [kind]}
        schemas = {"Other": {}, resource.kind: schema}
        document = {"metadata": {"uid": ""}, "components": {"schemas": schemas}}
        self._objects[f"/openapi/v3{resource.root}"] = document

    def put(self, collection: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object as another client, or replace it."""
        with self._changed:
            at = f"{collection}/{body['metadata']['name']}"
            return self._store(at, "MODIFIED" if at in self._objects else "ADDED", body)

    def drop(self, path: str) -> None:
        """Delete an object as another client."""
        with self._changed:
            self._drop(path)

    def fail(self, which: Which, error: ApiError, times: int | None = None) -> None:
        """Answer such requests with an error, `times` times or always."""
        self._faults.append((which, itertools.repeat(error, *([] if times is None else [times]))))

    def forget(self) -> None:
        """Compact the history: older watches expire."""
        with self._changed:
            self._oldest, self._history = self._version, []
            self._changed.notify_all()

    def bookmark(self, collection: str) -> str:
        """Send a bookmark with a new version to all watches of a collection."""
        with self._changed:
            self._version = next(self._versions)
            kind = {"metadata": {"resourceVersion": str(self._version)}}
            self._history.append((self._version, "BOOKMARK", f"{collection}/", kind))
            self._changed.notify_all()
            return str(self._version)

    def end_watches(self) -> None:
        """End all open watches, as a server does after a while."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def awaited(self, which: Which, seconds: float = 60) -> Request:
        """Wait for such a request."""
        with self._changed:
            came = self._changed.wait_for(lambda: any(map(which, self.asked)), seconds)
            assert came, f"no such request among {self.asked}"
            return next(filter(which, self.asked))

    def methods(self, path: str) -> list[str]:
        """The methods of the requests for a path, in their order."""
        return [request.method for request in self.asked if request.path == path and not request.query]

    # --- inside ---------------------------------------------------------------------------------------

    def _note(self, request: Request) -> None:
        with self._changed:
            self.asked.append(request)
            self._changed.notify_all()
            for which, errors in self._faults:
                error = next(errors, None) if which(request) else None
                if error:
                    raise error

    def _store(self, at: str, change: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._version = next(self._versions)
        made = _completed(body, self._version)
        self._objects[at] = made
        self._history.append((self._version, change, at, copy.deepcopy(made)))
        self._changed.notify_all()
        return made

    def _found(self, path: str) -> dict[str, Any]:
        if path not in self._objects:
            raise _not_found(path)
        return self._objects[path]

    def _drop(self, path: str) -> None:
        self._version = next(self._versions)
        last = self._objects.pop(path)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, "DELETED", path, last))
        self._changed.notify_all()
        for owned in [at for at, item in self._objects.items() if _belongs(item, last)]:
            if not self._objects[owned]["metadata"].get("finalizers"):
                self._drop(owned)

    def _is_orphan(self, body: Mapping[str, Any]) -> bool:
        """Whether it has owners none of which exists: it is collected at once."""
        there = {item["metadata"]["uid"] for item in self._objects.values()}
        owners = body["metadata"].get("ownerReferences") or ()
        return bool(owners) and there.isdisjoint(owner["uid"] for owner in owners)

    def _watch(self, request: Request, idle: float) -> Iterator[bytes]:
        version, generation = int(request.query["resourceVersion"]), self._generation
        end = monotonic() + float(request.query.get("timeoutSeconds", "inf"))
        while True:
            with self._changed:
                if version < self._oldest:
                    expired = {"code": 410, "reason": "Expired", "message": "too old resource version"}
                    yield json.dumps({"type": "ERROR", "object": expired}).encode()
                    return
                news = [entry for entry in self._history if entry[0] > version]
                if not news:
                    if generation != self._generation or monotonic() >= end:
                        return
                    if not self._changed.wait(min(idle, end - monotonic())) and monotonic() < end:
                        raise Unanswered("silence")
                    self._break_if_faulty(request)
                    continue
            for number, change, at, body in news:
                version = number
                if _parent(at) == request.path and _is_sent(change, body, request.query):
                    yield json.dumps({"type": change, "object": body}).encode()

    def _break_if_faulty(self, request: Request) -> None:
        for which, errors in self._faults:
            error = next(errors, None) if which(request) else None
            if error:
                raise error

    def _log(self, path: str, since: str, idle: float) -> Iterator[bytes]:
        streams = self.logs[path]
        for line in streams.pop(0) if len(streams) > 1 else streams[0]:
            if isinstance(line, Exception):
                raise line
            if callable(line):
                line(idle)
            elif line.decode() >= since[:-1]:
                yield line


class _Patient:
    """The same server, which retries each request; streams it does not."""

    def __init__(self, server: FakeApiServer, seconds: float) -> None:
        self._server, self._seconds = server, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._server, name)
        if name not in {"get", "get_metadata", "create", "annotate", "replace", "delete"}:
            return found
        return lambda *given: with_retries(lambda: found(*given), self._seconds)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _not_found(path: str) -> Refused:
    return Refused(404, "NotFound", f'"{_name(path)}" not found', _name(path))


def _completed(body: Mapping[str, Any], version: int) -> dict[str, Any]:
    """An object as a server stores it: with a uid, a time and a version."""
    made = copy.deepcopy(dict(body))
    given = {"uid": uuid.uuid4().hex, "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["metadata"] = {**given, **made["metadata"], "resourceVersion": str(version)}
    return made


def _marked(body: Mapping[str, Any]) -> dict[str, Any]:
    going = {"deletionTimestamp": _DELETED_AT, "deletionGracePeriodSeconds": 0}
    return {**body, "metadata": {**body["metadata"], **going}}


def _belongs(body: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    uids = {reference["uid"] for reference in body["metadata"].get("ownerReferences") or ()}
    return owner["metadata"]["uid"] in uids


def _page(items: list[dict[str, Any]], query: Query, version: int) -> dict[str, Any]:
    """So many objects as the query limits a list to, and where the next page begins."""
    start = int(query.get("continue") or 0)
    end = start + int(query.get("limit") or len(items))
    more = {"continue": str(end)} if end < len(items) else {}
    return {"metadata": {"resourceVersion": str(version), **more}, "items": items[start:end]}


def _is_sent(change: str, body: Mapping[str, Any], query: Query) -> bool:
    if change == "BOOKMARK":
        return query.get("allowWatchBookmarks") == "true"
    return _is_selected(body, query)


def _is_selected(body: Mapping[str, Any], query: Query) -> bool:
    labels = body["metadata"].get("labels") or {}
    wanted = filter(None, query.get("labelSelector", "").split(","))
    fields = filter(None, query.get("fieldSelector", "").split(","))
    return all(_has_label(labels, one) for one in wanted) and all(_field(body, one) for one in fields)


def _has_label(labels: Mapping[str, str], selector: str) -> bool:
    name, separator, value = selector.partition("!=") if "!=" in selector else selector.partition("=")
    return (labels.get(name) == value) == (separator == "=")


def _field(body: Any, selector: str) -> bool:
    path, separator, value = selector.partition("!=") if "!=" in selector else selector.partition("=")
    for part in path.split("."):
        body = (body or {}).get(part)
    return (body == value) == (separator == "=")
