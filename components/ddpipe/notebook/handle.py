"""A launch as its user sees it: status, log, result, and the live picture in a notebook's cell.

    handle = ddpipe.launch(train, nodes=2, args={"epochs": 3}, runs="s3://bucket/runs", image="…")
    handle.wait()                     # shows the progress
    handle.result()                   # what rank 0 returned
    handle = ddpipe.attach(handle.name, runs="s3://bucket/runs")      # in another kernel

A handle is a thin layer: a separate process (background.py) launches the job, by the same protocol as
`ddpipe launch`. It outlives the kernel; if it is gone, too, attaching starts another one to adopt the job.
"""

from __future__ import annotations

import html
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpipe.errors import CorruptObject, DdpipeError, Interrupted, JobDeleted, NoSuchObject, from_dict
from ddpipe.jobs import LOCAL
from ddpipe.kube.api import connect
from ddpipe.notebook.background import remove_jobs
from ddpipe.notebook.folder import OUTCOME, Launch, SealedResult, verified
from ddpipe.notebook.machine import Machine
from ddpipe.parameters import refuse
from ddpipe.processes.packing import unpacked_value
from ddpipe.processes.progress import is_notebook
from ddpipe.processes.reports import Reported, Reports
from ddpipe.storage import Store

_PAUSE = 0.2
_CELL_LINES = 12
_REMARK = "[launch] "
_INTERVAL = 1.0  # seconds between two updates of a cell
_COLORS = {"succeeded": "#1a7f37", "failed": "#cf222e", "stopped": "#9a6700", "lost": "#9a6700"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a launch.

    Attributes:
        phase: "running", "succeeded", "failed", "stopped", or "lost": its launcher ended without recording an
            outcome, and `attach` finds out what happened to its job.
        remark: The launcher's last message.
        metrics: The numbers of the last progress line (name=value).
        progress: How far its training is, as far as its lines say.
        error: Why it failed or was stopped.
    """

    phase: str
    remark: str = ""
    progress: Reported = field(default_factory=Reported)
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: DdpipeError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the launch has ended."""
        return self.phase != "running"


class Handle:
    """A launch: its status, its log, its result."""

    def __init__(self, launched: Launch, folder: Store, machine: Machine) -> None:
        self.name, self.uri = launched.name, folder.uri
        self._launched, self._folder, self._machine = launched, folder, machine

    def __repr__(self) -> str:
        """Name and phase."""
        return f"<{self.name}: {self.status().phase}>"

    def _repr_html_(self) -> str:
        """The picture in a notebook's cell."""
        return _html_of(self.name, self.uri, self.status(), self._machine.last_lines()[-_CELL_LINES:])

    @property
    def key(self) -> str:
        """Key of the result's seal, for `attach` on another machine; empty if it is not known here."""
        return self._machine.secrets().key

    def status(self) -> Status:
        """The present state."""
        alive = self._machine.is_launching()  # before the outcome, which is written before the launcher ends
        remark, progress = self._last_messages()
        try:
            outcome = json.loads(self._folder.read(OUTCOME))
            error = from_dict(outcome["error"]) if outcome["error"] else None
            metrics = outcome["metrics"] or progress.metrics
            return Status(phase=outcome["phase"], remark=remark, metrics=metrics, error=error)
        except NoSuchObject:
            phase, metrics = "running" if alive else "lost", progress.metrics
            return Status(phase=phase, remark=remark, metrics=metrics, progress=progress)
        except (ValueError, KeyError, TypeError) as damage:
            raise CorruptObject(
                what="the outcome of a launch is damaged",
                which=f"{self.uri}/{OUTCOME}",
                seen=repr(damage),
                do="Find out who wrote it, and see the log of the launch: handle.logs().",
            ) from damage

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """The lines of all ranks and the launcher's own messages; with `follow`, also those still to come."""
        return self._machine.lines(follow=follow)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end, for at most `timeout` seconds; a notebook shows the progress.

        Interrupting the cell only ends the waiting.
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
        """Rank 0's return value, after waiting for the end for at most `timeout` seconds; None for a script.

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
            last = f"; its last message: {status.remark}" if status.remark else ""
            raise JobDeleted(
                what="the outcome of a launch is unknown",
                which=self.name,
                seen=f"its launcher ended without recording one (was it killed, or its machine?){last}",
                do=f"Attach to it again, which looks for its job: ddpipe.attach({self.name!r}, runs=…). "
                "Local processes end with their launcher: launch them again.",
            )
        return unpacked_value(self._result().packed_value())

    def outputs(self, into: str | Path) -> list[Path]:
        """Fetch the files that rank 0 left in $DDPIPE_OUTPUTS into a folder.

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
            error = Interrupted(
                what="a launch was stopped",
                which=self.name,
                seen="stop() was called",
                do="Launch it again under another name.",
            )
            outcome = {"phase": "stopped", "error": error.as_dict(), "metrics": status.metrics}
            self._folder.write(OUTCOME, json.dumps(outcome, indent=1).encode())
        return self.status()

    def _result(self) -> SealedResult:
        return verified(self._folder, self.key, self._launched.sha256)

    def _last_messages(self) -> tuple[str, Reported]:
        """The launcher's last message, and what the last lines say about the progress."""
        remark, reports, now = "", Reports(), time.time()
        for line in self._machine.last_lines():
            is_report = reports.take("", line, now)
            if line.startswith(_REMARK) and not is_report:
                remark = line.removeprefix(_REMARK)
        return remark, reports.now(now)


def _html_of(name: str, uri: str, status: Status, lines: Sequence[str]) -> str:
    """A launch as HTML: its phase, its numbers, and its error or last lines; all text is escaped."""
    far = [str(status.progress)] if status.progress.percent is not None else []
    numbers = ", ".join([*far, *(f"{key} {value:g}" for key, value in status.metrics.items())])
    text = str(status.error) if status.error else "\n".join(lines)
    color = _COLORS.get(status.phase, "#0969da")
    return (
        f'<div style="font-family: system-ui, sans-serif"><b>{html.escape(name)}</b> '
        f'<b style="color: {color}">{html.escape(status.phase)}</b> '
        f"<small>{html.escape(status.remark)}</small><br>"
        f"<small>{html.escape(uri)}</small>"
        + (f"<br>{html.escape(numbers)}" if numbers else "")
        + f'<pre style="max-height: 20em; overflow: auto; font-size: 85%">{html.escape(text)}</pre></div>'
    )


class Display:
    """One output of a cell, updated in place; nothing is shown outside a notebook."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._next = 0.0

    def show(self, picture: Callable[[], str], *, last: bool = False) -> None:
        """Update the output, at most once a second."""
        if not is_notebook() or (time.monotonic() < self._next and not last):
            return
        shell: Any = importlib.import_module("IPython.display")  # only notebooks have it
        self._next = time.monotonic() + _INTERVAL
        if self._shown is None:
            self._shown = shell.display(shell.HTML(picture()), display_id=True)
        else:
            self._shown.update(shell.HTML(picture()))
