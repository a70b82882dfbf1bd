"""Keeping a picture of some objects up to date: list once, then watch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event, Thread
from typing import Any

from ddpipe.kube.api import ApiError, Cluster, Query, Refused, Unanswered
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import backoff, is_transient

# The server sends a bookmark every minute: more silence is a dead connection.
_SILENCE = 100
# The server ends a watch after so long; sooner one where silence tells nothing.
_WATCH_SECONDS, _SILENT_WATCH_SECONDS = 3300, 1800
# One that ends at once, again and again, is no watch.
_SHORTEST_WATCH = 1.0


@dataclass(frozen=True, slots=True)
class Picture:
    """All objects of a source, by uid, at one moment; and the one that has just gone, as it was at last."""

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
class Source:
    """What to watch.

    Attributes:
        name: For the pictures.
        path: The collection.
        select: Selectors.
        optional: Without the right to see it, we go on without it.
        bookmarked: The server sends bookmarks for it; of events it keeps no cache, and sends none.
    """

    name: str
    path: str
    select: Query
    optional: bool = False
    bookmarked: bool = True


def start(cluster: Cluster, source: Source, post: Callable[[Message], None], stop: Event) -> None:
    """Post a picture now and after every change, from a thread, until `stop` is set."""
    Thread(target=_keep, args=(cluster, source, post, stop), name=f"watch {source.name}", daemon=True).start()


def _keep(cluster: Cluster, source: Source, post: Callable[[Message], None], stop: Event) -> None:
    wait = backoff()
    while not stop.is_set():
        try:
            for picture in _pictures(cluster, source):
                if stop.is_set():
                    return
                post(picture)
                wait = backoff()
        except ApiError as error:
            if isinstance(error, Refused) and error.status == HTTPStatus.GONE:
                continue
            if source.optional and not is_transient(error):
                return
            post(Trouble(source.name, error))
            stop.wait(next(wait))


def _pictures(cluster: Cluster, source: Source) -> Iterator[Picture]:
    """List, then follow; ends with an `ApiError` only."""
    listed = cluster.get(source.path, source.select)
    objects: dict[str, Object] = {item["metadata"]["uid"]: item for item in listed["items"]}
    version = listed["metadata"]["resourceVersion"]
    yield Picture(source.name, dict(objects))
    while True:
        began = time.monotonic()
        seconds = _WATCH_SECONDS if source.bookmarked else _SILENT_WATCH_SECONDS
        silence = _SILENCE if source.bookmarked else seconds + _SILENCE
        for line in cluster.lines(source.path, _watch_query(source, version, seconds), silence):
            change = json.loads(line)
            version = _version(change)
            if change["type"] == "BOOKMARK":
                continue
            yield _changed(source, objects, change)
        if time.monotonic() - began < _SHORTEST_WATCH:
            raise Unanswered("the watch ended as soon as it began")


def _watch_query(source: Source, version: str, seconds: int) -> Query:
    return {
        **source.select,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(seconds),
    }


def _version(change: dict[str, Any]) -> str:
    if change["type"] == "ERROR":
        told = change["object"]
        raise Refused(told.get("code", 500), told.get("reason", ""), told.get("message", ""))
    version: str = change["object"]["metadata"]["resourceVersion"]
    return version


def _changed(source: Source, objects: dict[str, Object], change: dict[str, Any]) -> Picture:
    """The picture after a change, which `objects` takes in."""
    found = change["object"]
    uid = found["metadata"]["uid"]
    if change["type"] == "DELETED":
        objects.pop(uid, None)
        return Picture(source.name, dict(objects), found)
    objects[uid] = found
    return Picture(source.name, dict(objects))
