"""From a notebook: a function, or a script, as the ranks of a job, and a handle on it.

    handle = ddpipe.launch(train, nodes=2, args={"epochs": 3}, runs="s3://bucket/runs", image="…")
    handle.wait()                     # shows how it goes
    handle.result()                   # what rank 0 returned
    handle = ddpipe.attach(handle.name, runs="s3://bucket/runs")      # from another kernel

A handle is a thin layer: the launching is done by a process of its own (background.py), by the same protocol
as that of `ddpipe launch`. It outlives the kernel; where it is gone too, attaching starts another, which
adopts the job.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpipe.data.cache import default_cache
from ddpipe.errors import DdpipeError, Interrupted, JobDeleted, NoSuchObject, ParameterError, from_dict
from ddpipe.jobs import LOCAL
from ddpipe.jobs.options import JobOptions
from ddpipe.launching.loglines import metrics_of
from ddpipe.notebook.background import OUTCOME, RECORD, Launch
from ddpipe.notebook.display import Display, html_of
from ddpipe.notebook.packing import Work, packed, unpacked_value
from ddpipe.notebook.result import CALL, OUTPUTS, RESULT, SOURCE, VALUE
from ddpipe.parameters import declared
from ddpipe.runs import Run
from ddpipe.storage import Store, open_store

STOPPING_SECONDS = 90.0
"""Until a launcher that was told to stop is taken for stuck."""

_PAUSE = 0.2
_TAIL_BYTES = 2**16
_SHOWN = 12
"""Lines of the log in a notebook's cell."""

_REMARK = "[launch] "


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a launch is doing.

    Attributes:
        phase: "running", "succeeded", "failed", "stopped", or "lost": its launcher is gone without a word,
            and `attach` finds out what became of its job.
        said: The last thing that the launcher said.
        metrics: The numbers of the last progress line (name=value).
        error: Why it failed or was stopped.
    """

    phase: str
    said: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: DdpipeError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase != "running"


def launch(
    work: Work,
    *,
    args: Mapping[str, object] | None = None,
    name: str = "",
    nodes: int = 1,
    processes: int = 0,
    backend: str = "",
    runs: str = "runs",
    namespace: str = "",
    **options: Any,  # noqa: ANN401 - of the job, by their names
) -> Handle:
    """Run a function, or a script, as the ranks of one process group, without waiting for it.

    The function joins the others by `ddpipe.distributed.process_group` or torch's own; what it returns on
    rank 0, and the files that it leaves there in the folder $DDPIPE_OUTPUTS, come back.

    Args:
        work: A function, or the path of a script.
        args: The function's arguments by name; a script gets them as `--name value`.
        name: Of the launch, to attach to it; default: the function's with the time.
        nodes: Number of pods.
        processes: Ranks per pod; 0: one per GPU, or one where there is none.
        backend: "local" for processes of this machine, or what runs the pods; default as for `ddpipe launch`.
        runs: Folder of all runs, which the pods have to reach too: s3://bucket/prefix, or a path.
        namespace: Of the job; default: the account's own.
        options: Further options of the job, as `ddpipe launch --help` tells them: image, memory, gpus, …

    Raises:
        ParameterError: The function cannot travel, an option is wrong, or the name is taken.
        StoreError: The folder cannot be written to.
    """
    call = packed(work, args or {})
    given = {**options, **({"backend": backend} if backend else {}), "nodes": nodes, "processes": processes}
    chosen = Launch(
        name=name or f"{_readable(call.name)}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}",
        work=call.name,
        sha256=call.sha256,
        backend=backend or JobOptions().backend,
        nodes=nodes,
        processes=processes,
        namespace=namespace,
        options={} if backend == LOCAL else given,
    )
    folder = open_store(Run.named(runs, chosen.name).uri)
    if backend == LOCAL:
        _check_local(nodes, processes, options)
    else:
        chosen.job(folder.uri, namespace).validated()
    if folder.exists(RECORD):
        raise ParameterError(
            what="this cannot be launched",
            which=folder.uri,
            seen="there is a launch of this name",
            do=f"Choose another name, or attach to it: ddpipe.attach({chosen.name!r}, runs={runs!r}).",
        )
    folder.write(CALL, call.content)
    folder.write(SOURCE, call.source.encode())
    chosen.write(folder)
    handle = Handle(chosen, folder)
    handle._start()  # noqa: SLF001 - a handle in the making
    return handle


def attach(name: str, runs: str = "runs") -> Handle:
    """The handle of an earlier launch, from whatever kernel.

    Where its launcher is gone, another one adopts the job; nothing is started anew.

    Args:
        name: Of the launch.
        runs: As it was launched with.

    Raises:
        ParameterError: There is no such launch.
        StoreError: The folder cannot be read.
    """
    folder = open_store(Run.named(runs, name).uri)
    try:
        launched = Launch.read(folder)
    except NoSuchObject as error:
        raise ParameterError(
            what="there is nothing to attach to",
            which=folder.uri,
            seen=f"it has no {RECORD}: nothing was launched under this name",
            do="Check the name, and that runs is the same as for the launch.",
        ) from error
    handle = Handle(launched, folder)
    if handle.status().phase == "lost" and launched.backend != LOCAL:
        handle._start("adopt")  # noqa: SLF001 - as above
    return handle


class Handle:
    """A launch: how it is doing, what it says, what came of it.

    Attributes:
        name: By which `attach` finds it.
        uri: Its folder.
    """

    def __init__(self, launched: Launch, folder: Store) -> None:
        self.name, self.uri = launched.name, folder.uri
        self._launched, self._folder = launched, folder
        here = hashlib.sha256(folder.uri.encode()).hexdigest()[:16]
        self._here = default_cache() / "launches" / here
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        """In a line."""
        return f"<{self.name}: {self.status().phase}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_of(self.name, self.uri, self.status(), self._last_lines()[-_SHOWN:])

    def status(self) -> Status:
        """How it is doing at this moment."""
        alive = self._is_alive()  # looked at first: an outcome comes before the end
        said, metrics = self._heard()
        try:
            outcome = json.loads(self._folder.read(OUTCOME))
        except NoSuchObject:
            return Status(phase="running" if alive else "lost", said=said, metrics=metrics)
        error = from_dict(outcome["error"]) if outcome["error"] else None
        return Status(phase=outcome["phase"], said=said, metrics=outcome["metrics"] or metrics, error=error)

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """The lines of all ranks, and the launcher's own remarks, so far.

        Args:
            follow: Wait for further ones, until the end.
        """
        if not self._log.exists():  # it was launched, and ended, on another machine
            return
        with self._log.open(errors="replace") as file:
            rest = ""
            while True:
                alive = follow and self._is_alive()
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

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end; a notebook shows how it goes. Interrupting the cell ends the waiting only.

        Args:
            timeout: Seconds; then the status is that of a launch that still runs.
        """
        until = time.monotonic() + timeout if timeout is not None else None
        display, waited = Display(), False
        while self._is_alive() and (until is None or time.monotonic() < until):
            display.show(self._repr_html_)
            time.sleep(_PAUSE)
            waited = True
        if waited:
            display.show(self._repr_html_, last=True)
        return self.status()

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - whatever the function returned
        """What rank 0 returned, once it has; None for a script.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: It still runs.
            DdpipeError: It failed, or was stopped.
        """
        status = self.wait(timeout)
        if not status.is_over:
            raise TimeoutError(f"{self.name} still runs after {timeout} s")
        if status.error:
            raise status.error
        if status.phase != "succeeded":
            raise self._ended(status)
        return unpacked_value(RESULT.open(self.uri).read(VALUE))

    def outputs(self, into: str | Path) -> list[Path]:
        """Fetch the files that rank 0 left in $DDPIPE_OUTPUTS.

        Args:
            into: Folder to put them in.
        """
        fetched = []
        for key in RESULT.open(self.uri).facts["outputs"]:
            path = Path(into) / key
            if Path(into).resolve() not in path.resolve().parents:
                raise ParameterError(
                    what="an output cannot be fetched",
                    which=key,
                    seen=f"it would lead out of {into}",
                    do="See who has written to the folder of this launch.",
                )
            self._folder.download(OUTPUTS + key, path)
            fetched.append(path)
        return fetched

    def stop(self) -> Status:
        """End it: its job is deleted, or its processes here are stopped; no error if it is over."""
        if self._is_alive():
            pid = int((self._here / "pid").read_text())
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + STOPPING_SECONDS
            while self._is_alive() and time.monotonic() < until:
                time.sleep(_PAUSE)
        status = self.status()
        if status.phase == "lost":
            # Told to stop, the launcher of a job deletes it and ends: it has no time for more.
            error = self._ended(Status(phase="stopped"))
            outcome = {"phase": "stopped", "error": error.as_dict(), "metrics": status.metrics}
            self._folder.write(OUTCOME, json.dumps(outcome, indent=1).encode())
        return self.status()

    def _ended(self, status: Status) -> DdpipeError:
        if status.phase == "stopped":
            return Interrupted(
                what="a launch was stopped",
                which=self.name,
                seen="somebody called stop()",
                do="Launch it again under another name.",
            )
        return JobDeleted(
            what="what became of a launch is not known",
            which=self.name,
            seen="its launcher ended without a word: it was killed, or the machine was",
            do=f"Attach to it again, which finds its job: ddpipe.attach({self.name!r}, runs=…); processes of "
            "this machine ended with their launcher: launch again.",
        )

    @property
    def _log(self) -> Path:
        return self._here / "log"

    def _start(self, *how: str) -> None:
        """Start the launcher; it holds the lock as long as it lives, whatever becomes of this kernel."""
        self._here.mkdir(parents=True, exist_ok=True)
        with (self._here / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another kernel was quicker
                return
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    [sys.executable, "-m", "ddpipe.notebook.background", self.uri, *how],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock.fileno(),),
                    start_new_session=True,  # what restarts or interrupts the kernel does not reach it
                )
            (self._here / "pid").write_text(str(self._process.pid))

    def _is_alive(self) -> bool:
        """Whether a launcher of this machine is at it: no other process has its lock."""
        if self._process:
            self._process.poll()  # let it go when it has ended
        try:
            with (self._here / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _last_lines(self) -> list[str]:
        """The end of the log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def _heard(self) -> tuple[str, dict[str, float]]:
        """The launcher's last remark, and the numbers of the last progress lines."""
        said, metrics = "", dict[str, float]()
        for line in self._last_lines():
            if line.startswith(_REMARK):
                said = line.removeprefix(_REMARK)
            else:
                metrics.update(metrics_of(line))
        return said, metrics


def _readable(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "work"


def _check_local(nodes: int, processes: int, options: Mapping[str, object]) -> None:
    problems = [f"{name} is for the pods of a job" for name in options]
    counts = {"nodes": nodes, "processes": processes}
    found = (item.problem(counts[item.name]) for item in declared(JobOptions) if item.name in counts)
    problems += filter(None, found)
    if problems:
        raise ParameterError(
            what="this cannot be launched",
            which=f"backend {LOCAL}",
            seen="; ".join(problems),
            do="Correct these, or choose a backend that runs pods.",
        )
