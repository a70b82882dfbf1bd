"""Keeping a picture of some objects up to date: list once, then watch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from threading import Event, Thread
from typing import Any

from ddpipe.kube.cluster import ApiError, Cluster, Query, Refused, Unanswered
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import is_transient, reconnected

# The server sends a bookmark every minute: a longer silence is a dead connection.
_SILENCE = 100
# The server ends a watch after so long; sooner one without bookmarks, where silence means nothing.
_WATCH_SECONDS, _SILENT_WATCH_SECONDS = 3300, 1800
# A watch that ends sooner than this by itself is a failure: resuming it at once would be a busy loop.
_SHORTEST_WATCH = 1.0
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Picture:
    """All objects of a source at one moment, by uid; and the one that has just been deleted."""

    source: str
    objects: dict[str, Object]
    gone: Object | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A source cannot be seen at the moment."""

    source: str
    error: ApiError


Message = Picture | Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSource:
    """What to watch."""

    name: str
    path: str
    select: Query
    concerns: Callable[[Object], bool] = lambda _: True  # which count: for what selectors cannot express
    optional: bool = False  # without the right to see it, the watch ends silently
    bookmarked: bool = True  # of events the server keeps no cache, and sends no bookmarks


def start(cluster: Cluster, source: WatchSource, post: Callable[[Message], None], stop: Event) -> None:
    """Post a picture now and after every change, from a thread, until `stop` is set."""
    Thread(target=_keep, args=(cluster, source, post, stop), name=f"watch {source.name}", daemon=True).start()


def _keep(cluster: Cluster, source: WatchSource, post: Callable[[Message], None], stop: Event) -> None:
    def is_over(error: ApiError | None) -> bool:
        if stop.is_set():
            return True
        # Expired: it fell behind what the server remembers, and is listed again, which is no trouble.
        if error is None or (isinstance(error, Refused) and error.status == HTTPStatus.GONE):
            return False
        if source.optional and not is_transient(error):
            return True
        post(Trouble(source.name, error))
        return False

    for picture in reconnected(partial(_pictures, cluster, source), is_over, stop.wait):
        if stop.is_set():
            return
        post(picture)


def _pictures(cluster: Cluster, source: WatchSource) -> Iterator[Picture]:
    """List, then watch; ends with an `ApiError` only."""
    listed = cluster.get(source.path, source.select)
    found = map(_slim, filter(source.concerns, listed["items"]))
    objects: dict[str, Object] = {item["metadata"]["uid"]: item for item in found}
    version = listed["metadata"]["resourceVersion"]
    yield Picture(source.name, dict(objects))
    while True:
        began = time.monotonic()
        seconds = _WATCH_SECONDS if source.bookmarked else _SILENT_WATCH_SECONDS
        silence = _SILENCE if source.bookmarked else seconds + _SILENCE
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        since = {**source.select, **query, "resourceVersion": version}
        for line in cluster.lines(source.path, since, silence):
            change = _change(line)
            version = change["object"]["metadata"]["resourceVersion"]
            if change["type"] != "BOOKMARK" and source.concerns(change["object"]):
                yield _changed(source, objects, change)
        if time.monotonic() - began < _SHORTEST_WATCH:
            raise Unanswered("the watch ended as soon as it began")


def _change(line: bytes) -> dict[str, Any]:
    try:
        change: dict[str, Any] = json.loads(line)
        kind, found = change["type"], change["object"]
        if kind == "ERROR":
            raise Refused(found.get("code", 500), found.get("reason", ""), found.get("message", ""))
        if kind != "BOOKMARK":
            found["metadata"]["uid"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unanswered(f"not a watch event: {line[:_SHOWN].decode(errors='replace')!r}") from error
    return change


def _changed(source: WatchSource, objects: dict[str, Object], change: dict[str, Any]) -> Picture:
    """The picture after a change, which is applied to `objects`."""
    found = _slim(change["object"])
    uid = found["metadata"]["uid"]
    if change["type"] == "DELETED":
        objects.pop(uid, None)
        return Picture(source.name, dict(objects), found)
    objects[uid] = found
    return Picture(source.name, dict(objects))


def _slim(found: Object) -> Object:
    """Without the record of who set which field: a third of a pod, and nobody reads it."""
    metadata = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    return {**found, "metadata": metadata}
