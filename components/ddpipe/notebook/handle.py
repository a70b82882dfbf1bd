"""A handle on a launch, for notebooks.

    handle = ddpipe.launch(train, nodes=2, args={"epochs": 3}, runs="s3://bucket/runs", image="…")
    handle.wait()                     # shows the progress
    handle.result()                   # what rank 0 returned
    handle = ddpipe.attach(handle.name, runs="s3://bucket/runs")      # in another kernel

A handle is a thin layer: a separate process (background.py) launches the job, by the same protocol as
`ddpipe launch`. It outlives the kernel; if it is gone, too, attaching starts another one to adopt the job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpipe.errors import (
    CorruptObject,
    DdpipeError,
    Interrupted,
    JobDeleted,
    NoSuchObject,
    ParameterError,
    from_dict,
)
from ddpipe.jobs import LOCAL
from ddpipe.jobs.options import JobOptions
from ddpipe.kube.api import connect
from ddpipe.launching.loglines import metrics_of
from ddpipe.notebook.background import remove_jobs
from ddpipe.notebook.display import Display, html_of
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.notebook.packing import Work, packed, unpacked_value
from ddpipe.notebook.record import OUTCOME, PRIVATE, RECORD, Launch
from ddpipe.notebook.result import CALL, SOURCE, Result, verified
from ddpipe.parameters import AUTO, declared, refuse
from ddpipe.runs import Run
from ddpipe.storage import Store, open_store

_PAUSE = 0.2
_CELL_LINES = 12
_REMARK = "[launch] "
_LOCAL_OPTIONS = {"backend", "nodes", "processes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a launch.

    Attributes:
        phase: "running", "succeeded", "failed", "stopped", or "lost": its launcher ended without recording an
            outcome, and `attach` finds out what happened to its job.
        remark: The launcher's last message.
        metrics: The numbers of the last progress line (name=value).
        error: Why it failed or was stopped.
    """

    phase: str
    remark: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: DdpipeError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the launch has ended."""
        return self.phase != "running"


def launch(
    work: Work,
    options: Mapping[str, Any],
    *,
    args: Mapping[str, object],
    name: str = "",
    runs: str = "runs",
    namespace: str = "",
) -> Handle:
    """Launch a function or a script without waiting for it: see `ddpipe.launch`.

    Args:
        work: A function, or the path of a script.
        options: Options of the job by name; "local" is a backend, too.
        args: The function's arguments by name.
        name: Name of the launch; empty for one made of the function's name and the time.
        runs: URI of the folder of all runs.
        namespace: Namespace of the job; empty for the account's own.

    Raises:
        ParameterError: The function cannot be shipped, an option is wrong, or the name is taken.
        StoreError: The folder cannot be written to.
    """
    call = packed(work, args)
    chosen, backend = _checked(options)
    public = {} if backend == LOCAL else chosen.to_dict()
    private = {key: public.pop(key) for key in PRIVATE if public.get(key)}
    launched = Launch(
        name=name or f"{_readable(call.name)}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}",
        work=call.name,
        sha256=call.sha256,
        backend=backend,
        nodes=chosen.nodes,
        processes=chosen.processes,
        namespace=namespace,
        options=public,
        private=tuple(private),
    )
    folder = open_store(Run.named(runs, launched.name).uri)
    if folder.exists(RECORD):
        raise ParameterError(
            what="this cannot be launched",
            which=folder.uri,
            seen="a launch of this name exists",
            do=f"Choose another name, or attach to it: ddpipe.attach({launched.name!r}, runs={runs!r}).",
        )
    folder.write(CALL, call.content)
    folder.write(SOURCE, call.source.encode())
    launched.write(folder)
    machine = Machine(folder.uri)
    machine.keep(Secrets(options=private))
    machine.start()
    return Handle(launched, folder, machine)


def attach(name: str, runs: str = "runs", *, key: str = "") -> Handle:
    """Return the handle of an earlier launch: see `ddpipe.attach`.

    Args:
        name: Name of the launch.
        runs: The same folder as for the launch.
        key: Key of the result's seal; empty on the machine of the launch, which has it.

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
    machine = Machine(folder.uri)
    if key and not machine.secrets().key:
        machine.keep(Secrets(_checked_key(key)))
    handle = Handle(launched, folder, machine)
    if handle.status().phase == "lost" and launched.backend != LOCAL:
        machine.start("adopt")
    return handle


class Handle:
    """A launch: its status, its log, its result.

    Attributes:
        name: Name of the launch; `attach` finds it.
        uri: Its folder.
    """

    def __init__(self, launched: Launch, folder: Store, machine: Machine) -> None:
        self.name, self.uri = launched.name, folder.uri
        self._launched, self._folder, self._machine = launched, folder, machine

    def __repr__(self) -> str:
        """Name and phase."""
        return f"<{self.name}: {self.status().phase}>"

    def _repr_html_(self) -> str:
        """The picture in a notebook's cell."""
        return html_of(self.name, self.uri, self.status(), self._machine.last_lines()[-_CELL_LINES:])

    @property
    def key(self) -> str:
        """Key of the result's seal, for `attach` on another machine; empty if it is not known here."""
        return self._machine.secrets().key

    def status(self) -> Status:
        """The present state."""
        alive = self._machine.is_launching()  # before the outcome, which is written before the launcher ends
        remark, metrics = self._last_messages()
        try:
            outcome = json.loads(self._folder.read(OUTCOME))
            error = from_dict(outcome["error"]) if outcome["error"] else None
            metrics = outcome["metrics"] or metrics
            return Status(phase=outcome["phase"], remark=remark, metrics=metrics, error=error)
        except NoSuchObject:
            return Status(phase="running" if alive else "lost", remark=remark, metrics=metrics)
        except (ValueError, KeyError, TypeError) as damage:
            raise CorruptObject(
                what="the outcome of a launch is damaged",
                which=f"{self.uri}/{OUTCOME}",
                seen=repr(damage),
                do="Find out who wrote it, and see the log of the launch: handle.logs().",
            ) from damage

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """The lines of all ranks and the launcher's own messages so far.

        Args:
            follow: Wait for more until the launch ends.
        """
        return self._machine.lines(follow=follow)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end; a notebook shows the progress. Interrupting the cell only ends the waiting.

        Args:
            timeout: Seconds; the status is then that of a running launch.
        """
        until = time.monotonic() + timeout if timeout is not None else None
        display, waited = Display(), False
        while self._machine.is_launching() and (until is None or time.monotonic() < until):
            display.show(self._repr_html_)
            time.sleep(_PAUSE)
            waited = True
        if waited:
            display.show(self._repr_html_, last=True)
        return self.status()

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - the function's own type
        """Rank 0's return value, after waiting for the end; None for a script.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: It still runs.
            ParameterError: The key of the result is on another machine.
            CorruptObject: The result was not written by this launch.
            DdpipeError: The launch failed or was stopped.
        """
        status = self.wait(timeout)
        if not status.is_over:
            raise TimeoutError(f"{self.name} still runs after {timeout} s")
        if status.error:
            raise status.error
        if status.phase != "succeeded":
            raise self._ended(status)
        return unpacked_value(self._result().packed_value())

    def outputs(self, into: str | Path) -> list[Path]:
        """Fetch the files that rank 0 left in $DDPIPE_OUTPUTS.

        Args:
            into: Folder for them.

        Raises:
            ParameterError: The key of the result is on another machine.
            CorruptObject: A file was not written by this launch.
            NoSuchObject: The launch has not succeeded.
        """
        result, folder = self._result(), Path(into)
        paths = {name: folder / name for name in result.outputs}
        outside = [name for name, path in paths.items() if folder.resolve() not in path.resolve().parents]
        refuse("outputs cannot be fetched", [f"{name!r} leads out of {into}" for name in outside])
        for name, path in paths.items():
            result.fetch(name, path)
        return list(paths.values())

    def stop(self) -> Status:
        """End the launch: its job is deleted, or its local processes are stopped. No error if it is over.

        Raises:
            LaunchError: The job could not be deleted; it may still run.
        """
        self._machine.stop()
        status = self.status()
        if status.phase == "lost":
            if self._launched.backend != LOCAL:
                # A launcher deletes its job as its last act, and nobody learns whether that worked.
                remove_jobs(Launch.read(self._folder), connect())
            error = self._ended(Status(phase="stopped"))
            outcome = {"phase": "stopped", "error": error.as_dict(), "metrics": status.metrics}
            self._folder.write(OUTCOME, json.dumps(outcome, indent=1).encode())
        return self.status()

    def _result(self) -> Result:
        return verified(self._folder, self.key, self._launched.sha256)

    def _ended(self, status: Status) -> DdpipeError:
        if status.phase == "stopped":
            return Interrupted(
                what="a launch was stopped",
                which=self.name,
                seen="stop() was called",
                do="Launch it again under another name.",
            )
        last = f"; its last message: {status.remark}" if status.remark else ""
        return JobDeleted(
            what="the outcome of a launch is unknown",
            which=self.name,
            seen=f"its launcher ended without recording one (was it killed, or its machine?){last}",
            do=f"Attach to it again, which looks for its job: ddpipe.attach({self.name!r}, runs=…). "
            "Local processes end with their launcher: launch them again.",
        )

    def _last_messages(self) -> tuple[str, dict[str, float]]:
        """The launcher's last message, and the numbers of the last progress lines."""
        remark, metrics = "", dict[str, float]()
        for line in self._machine.last_lines():
            if line.startswith(_REMARK):
                remark = line.removeprefix(_REMARK)
            else:
                metrics.update(metrics_of(line))
        return remark, metrics


def _readable(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "work"


def _checked(options: Mapping[str, Any]) -> tuple[JobOptions, str]:
    """The options of the job, and the backend, which may be "local".

    Raises:
        ParameterError: They cannot work; all problems are listed.
    """
    backend = options.get("backend", AUTO)
    if backend != LOCAL:
        return JobOptions.from_dict(options), backend
    local = {name: value for name, value in options.items() if name in _LOCAL_OPTIONS - {"backend"}}
    defaults = {item.name: item.default for item in declared(JobOptions)}
    problems = [
        f"{name} is for the pods of a job"
        for name, value in options.items()
        if name not in _LOCAL_OPTIONS and _plain(value) != defaults.get(name)
    ]
    found = [item.problem(local[item.name]) for item in declared(JobOptions) if item.name in local]
    refuse(f"this cannot be launched with backend={LOCAL!r}", [*problems, *filter(None, found)])
    return JobOptions(**local), LOCAL


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _checked_key(key: str) -> str:
    if re.fullmatch(r"[0-9a-f]{64}", key):
        return key
    raise ParameterError(
        what="this is not the key of a launch",
        which="key",
        seen=f"{len(key)} characters, not 64 hexadecimal digits",
        do="Print handle.key on the machine of the launch.",
    )
