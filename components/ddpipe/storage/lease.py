"""A folder that one process at a time works on, on whatever machine.

Each process that wants the folder puts a lease into it, an object of its own, and looks for those of
others. One that is renewed has a living holder. One that is not renewed for a while, or whose process is
gone from this machine, is void. All ages are by the store's own times, so that clocks need not agree.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from uuid import uuid4

from ddpipe.errors import ParameterError, StoreError
from ddpipe.processes.process import is_alive
from ddpipe.storage.base import Store

_log = logging.getLogger(__name__)

_PREFIX = "lease-"


@contextmanager
def lease(store: Store, renewal: float = 5.0, patience: float = 20.0) -> Iterator[None]:
    """Hold the folder.

    Args:
        store: The folder.
        renewal: Seconds between two signs of life.
        patience: Seconds without one after which a holder counts as lost; a newcomer waits that long.

    Raises:
        ParameterError: A living process holds it; of two that come at once, both may be told so.
        StoreError: The store does not answer, or cannot be written to.
    """
    own = _Lease(store)
    own.renew()
    try:
        _wait_for_others(own, renewal, patience)
        ended = threading.Event()
        keeper = threading.Thread(target=_keep, args=(own, renewal, ended), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join()
    finally:
        with suppress(StoreError):
            store.delete(own.key)


class _Lease:
    """What one process says."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.key = f"{_PREFIX}{socket.gethostname()}.{os.getpid()}.{uuid4().hex}"
        self._renewals = 0

    def renew(self) -> None:
        """A sign of life: the object's content, and so its etag, becomes another."""
        self._renewals += 1
        self.store.write(self.key, str(self._renewals).encode())

    def others(self, patience: float) -> dict[str, str]:
        """Keys and etags of those whose holders may live; void ones are deleted."""
        found = list(self.store.list(_PREFIX))
        now = max((item.modified for item in found), default=datetime.now(UTC))  # this one's renewal
        others = {item.key: item.etag for item in found if item.key != self.key}
        for item in found:
            if item.key in others and (
                (now - item.modified).total_seconds() > patience or _is_gone(item.key)
            ):
                self.store.delete(item.key)
                del others[item.key]
        return others


def _wait_for_others(own: _Lease, renewal: float, patience: float) -> None:
    """Wait until none of the others can be alive any more."""
    seen: dict[str, str] = {}
    pause = threading.Event()
    while others := own.others(patience):
        if not seen:
            _log.info(
                "%s: looking for up to %.0f s whether another process is at it", own.store.uri, patience
            )
        for key, etag in others.items():
            if seen.setdefault(key, etag) != etag:
                host, pid = _holder(key)
                raise ParameterError(
                    what="the run is being worked on",
                    which=own.store.uri,
                    seen=f"process {pid} on {host} is at it",
                    do="Wait for it or stop it, or give this run another name: --run NAME.",
                )
        pause.wait(renewal)
        own.renew()


def _keep(own: _Lease, renewal: float, ended: threading.Event) -> None:
    while not ended.wait(renewal):
        with suppress(StoreError):  # away for a while: the next renewal may succeed
            own.renew()


def _is_gone(key: str) -> bool:
    """Whether its process was one of this machine, and is no more."""
    host, pid = _holder(key)
    return host == socket.gethostname() and not is_alive(pid)


def _holder(key: str) -> tuple[str, int]:
    """Machine and process id."""
    host, pid, _ = key.removeprefix(_PREFIX).rsplit(".", 2)
    return host, int(pid)
