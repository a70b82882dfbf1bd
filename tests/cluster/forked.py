"""Launchers forked from a process that has their modules in memory: to import them is most of a start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait

_PROCESSES = multiprocessing.get_context("forkserver")
_MODULES = (
    "ddpipe.commands.jobs",
    "ddpipe.launching.launcher",
    "ddpipe.kube.api",
    "kubernetes.config",
    "yaml",
)
# every new process runs the main module's imports again: pytest's
_PROCESSES.set_forkserver_preload(["ddpipe.__main__", *_MODULES, "pytest"])
_ONE_AT_A_TIME = threading.Lock()
"""Who starts a process also asks for the ends of all others, and each is given once."""


class Forked:
    """What subprocess.Popen is for `python -m ddpipe …`."""

    def __init__(self, arguments: Sequence[str], writer: int, environment: Mapping[str, str]) -> None:
        with _ONE_AT_A_TIME, Connection(os.dup(writer), readable=False) as output:
            self._process = _PROCESSES.Process(
                target=_run, args=(list(arguments), output, dict(environment)), daemon=True
            )
            self._process.start()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _ONE_AT_A_TIME:
            return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        wait([self._process.sentinel], seconds)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("ddpipe", seconds or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self._process.pid and self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: Sequence[str], output: Connection, environment: Mapping[str, str]) -> None:
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ddpipe", *arguments]
    from ddpipe.__main__ import main  # noqa: PLC0415 - in memory already, but not where tests are collected

    main()
