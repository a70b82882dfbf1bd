"""What the machine of a launch has of it: the launcher process, its log, and the launch's secrets.

<cache>/launches/ID/    ID is a hash of the URI of the launch's folder
lock                locked by the launcher as long as it lives
pid                 its process ID
log                 what it printed
secrets             the key of the result's seal, and private options
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddpipe.data.cache import default_cache

STOPPING_SECONDS = 90.0  # a launcher that runs this long after SIGTERM is stuck
_PAUSE = 0.2
_TAIL_BYTES = 2**16
_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the store must not hold."""

    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Machine:
    """One launch, as far as this machine knows it."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._folder = default_cache() / "launches" / hashlib.sha256(uri.encode()).hexdigest()[:16]
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, known: Secrets) -> None:
        """Keep the secrets of the launch, readable for this user only."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "secrets"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "w") as file:
            json.dump(asdict(known), file)

    def secrets(self) -> Secrets:
        """The secrets of the launch; empty on any other machine."""
        try:
            return Secrets(**json.loads((self._folder / "secrets").read_text()))
        except FileNotFoundError:
            return Secrets(key="")

    def start(self, *mode: str) -> None:
        """Start the launcher, unless another kernel has just done so."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    [sys.executable, "-m", "ddpipe.notebook.background", self._uri, *mode],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock.fileno(),),  # the lock is the launcher's for as long as it lives
                    start_new_session=True,  # a restart or an interrupt of the kernel does not reach it
                )
            (self._folder / "pid").write_text(str(self._process.pid))

    def is_launching(self) -> bool:
        """Whether a launcher of this machine is alive: its lock is taken."""
        if self._process:
            self._process.poll()  # reap it if it has ended
        try:
            with (self._folder / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def stop(self) -> None:
        """Ask the launcher to stop, and wait until it has ended or is stuck."""
        if not self.is_launching():
            return
        with suppress(ProcessLookupError):
            os.kill(int((self._folder / "pid").read_text()), signal.SIGTERM)
        until = time.monotonic() + STOPPING_SECONDS
        while self.is_launching() and time.monotonic() < until:
            time.sleep(_PAUSE)

    def lines(self, *, follow: bool) -> Iterator[str]:
        """The lines of the log; none if the launcher ran on another machine."""
        if not self._log.exists():
            return
        with self._log.open(errors="replace") as file:
            rest = ""
            while True:
                alive = follow and self.is_launching()
                while line := file.readline():
                    rest += line
                    if rest.endswith("\n"):
                        yield rest[:-1]
                        rest = ""
                if not alive:
                    break
                time.sleep(_PAUSE)
            if rest:
                yield rest

    def last_lines(self) -> list[str]:
        """The end of the log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    @property
    def _log(self) -> Path:
        return self._folder / "log"
