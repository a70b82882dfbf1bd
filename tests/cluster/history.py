"""All objects of a collection that ever were, read while the server still remembers them."""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Event, Lock, Thread

from ddpipe.kube.api import ApiError, ApiServer

_PAUSE = 10
"""Seconds between two looks: a server forgets after about 100 changes, though none of the last minute."""


class History:
    """Which objects there were since it was made."""

    def __init__(self, admin: ApiServer, path: str) -> None:
        self._admin, self._path = admin, path
        self._uids: set[str] = set()
        self._position = self._list()[0]
        self._lock, self._over = Lock(), Event()
        self._thread = Thread(target=self._keep, name=f"history of {path}")
        self._thread.start()

    def uids(self) -> set[str]:
        """Of all, those that are gone too."""
        self._catch_up()
        return set(self._uids)

    def close(self) -> None:
        """Read no further."""
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(_PAUSE):
            with suppress(ApiError):  # the next time continues where this one began
                self._catch_up()

    def _list(self) -> tuple[str, set[str]]:
        """The version of the collection, and what is in it."""
        found = self._admin.get(self._path)
        return found["metadata"]["resourceVersion"], {item["metadata"]["uid"] for item in found["items"]}

    def _catch_up(self) -> None:
        with self._lock:
            # All changes up to here are among the first lines of the watch, however short it is.
            reached, present = self._list()
            query = {"watch": "true", "resourceVersion": self._position, "timeoutSeconds": "1"}
            for line in self._admin.lines(self._path, query, 10):
                change = json.loads(line)
                if change["type"] == "ERROR":  # 200 jobs change so often that it has forgotten some already
                    break
                self._uids.add(change["object"]["metadata"]["uid"])
            self._uids |= present
            self._position = reached
