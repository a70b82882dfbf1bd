"""A lease on a folder: one process at a time works on it, on any machine.

Each process that wants the folder writes a lease into it, an object of its own, and looks for those of
others. A lease that is renewed has a living holder. One that is not renewed for a while, or whose process
ended on this machine, is void: the next process deletes it. All ages are by the store's own times, so clocks
need not agree.

A holder that was paused for longer than that (a suspended laptop, a stopped process) finds its lease deleted
at the next renewal, and is interrupted, because another process may work on the folder by then:

    holder     renews  renews  .... paused ................  no lease: SIGINT to itself, then an error
    newcomer                     writes its own, waits, deletes the void one, works

One that was paused between looking for its lease and writing it has restored it without a look. So after a
pause as long as the patience, a lease of another process means the same.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from ddpipe.errors import ParameterError, StoreError
from ddpipe.processes.machine import is_alive
from ddpipe.storage.base import LEASE, Store

_log = logging.getLogger(__name__)

_MACHINE = 12  # hex digits of a lease's last part that identify the machine; the others are random

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@contextmanager
def lease(store: Store, renewal: float = 5.0, patience: float = 20.0) -> Iterator[None]:
    """Hold the folder."""
    own = _Lease(store)
    own.renew()
    try:
        _wait_for_others(own, renewal, patience)
        keeper = _Keeper(own, renewal, patience)
        try:
            with keeper:
                yield
        except BaseException as error:
            if keeper.lost:
                raise _taken(store) from error
            raise
        if keeper.lost:
            raise _taken(store)
    finally:
        with suppress(StoreError):
            store.delete(own.key)


def _taken(store: Store) -> ParameterError:
    return ParameterError(
        what="another process may be working on the run",
        which=store.uri,
        seen="this one was paused for so long that its lease expired and was deleted",
        do="Let the other one finish, or stop it and run the same command again to resume.",
    )


class _Lease:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.key = f"{LEASE}{socket.gethostname()}.{os.getpid()}.{_machine()}{uuid4().hex[_MACHINE:]}"
        self._renewals = 0

    def renew(self) -> None:
        """Change the object's content, and so its etag and age."""
        self._renewals += 1
        self.store.write(self.key, str(self._renewals).encode())

    def others(self, patience: float) -> dict[str, str]:
        """Keys and etags of those whose holders may live; void ones are deleted."""
        found = list(self.store.list(LEASE))
        now = max((item.modified for item in found), default=datetime.now(UTC))  # this one's renewal
        others = {item.key: item.etag for item in found if item.key != self.key}
        for item in found:
            is_here = item.key.rpartition(".")[2].startswith(_machine())
            is_gone = is_here and not is_alive(_holder(item.key)[1])
            if item.key in others and ((now - item.modified).total_seconds() > patience or is_gone):
                self.store.delete(item.key)
                del others[item.key]
        return others


class _Keeper:
    """Renews a lease in a thread, for as long as the `with` block takes."""

    def __init__(self, own: _Lease, renewal: float, patience: float) -> None:
        self.lost = False  # the lease was deleted; a block in the main thread gets a SIGINT
        self._own, self._renewal, self._patience = own, renewal, patience
        self._ended = threading.Event()
        self._holder = threading.current_thread()
        self._ignored_interrupts = False
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> None:
        # A shell starts background processes with SIGINT ignored: then nothing would interrupt the block.
        self._ignored_interrupts = (
            self._holder is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )
        if self._ignored_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._ignored_interrupts:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _keep(self) -> None:
        renewed = time.time()  # the monotonic clock stands still while a machine is suspended
        while not self.lost and not self._ended.wait(self._renewal):
            with suppress(StoreError):  # unreachable for a while: the next renewal may succeed
                if self._own.store.exists(self._own.key):
                    self._own.renew()
                    before, renewed = renewed, time.time()
                    was_paused = renewed - before > self._patience
                    rivals = (item for item in self._own.store.list(LEASE) if item.key != self._own.key)
                    self.lost = was_paused and any(rivals)
                else:
                    self.lost = True
        if self.lost and self._holder is threading.main_thread() and self._holder.ident:
            signal.pthread_kill(self._holder.ident, signal.SIGINT)


def _wait_for_others(own: _Lease, renewal: float, patience: float) -> None:
    """Wait until none of the others can be alive any more."""
    seen: dict[str, str] = {}
    pause = threading.Event()
    while others := own.others(patience):
        if not seen:
            _log.info(
                "%s: waiting up to %.0f s to see whether another process is working on it",
                own.store.uri,
                patience,
            )
        for key, etag in others.items():
            if seen.setdefault(key, etag) != etag:
                host, pid = _holder(key)
                raise ParameterError(
                    what="another process is working on the run",
                    which=own.store.uri,
                    seen=f"process {pid} on {host} renews its lease",
                    do="Wait for it or stop it, or give this run another name with `run`.",
                )
        pause.wait(renewal)
        own.renew()


def _machine() -> str:
    """Where process ids mean the same: this start of this machine, and this namespace of process ids."""
    facts = [socket.gethostname()]
    with suppress(OSError):  # other systems than Linux have neither
        facts += [_BOOT.read_text(), str(_NAMESPACE.readlink())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:_MACHINE]


def _holder(key: str) -> tuple[str, int]:
    """Machine and process id."""
    host, pid, _ = key.removeprefix(LEASE).rsplit(".", 2)
    return host, int(pid)
