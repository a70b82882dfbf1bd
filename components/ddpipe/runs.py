"""The folder of a run: where each step writes its results, and a record of how each step ended.

<runs>/<name>/steps/<step>.json    time, outcome and facts of a step
<runs>/<name>/training …           its results
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

from ddpipe.errors import (
    CorruptObject,
    DdpipeError,
    InputError,
    Interrupted,
    NoSuchObject,
    ParameterError,
    check_schema,
)
from ddpipe.parameters import Parameters, parameter
from ddpipe.processes.machine import on_stop
from ddpipe.storage import Store, open_store
from ddpipe.storage.base import LEASE, held_folders
from ddpipe.storage.lease import lease
from ddpipe.tracker import tracked

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

SCHEMA = 1  # of the record of a step; those of before have none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Parameters):
    """Which run a step belongs to."""

    what: ClassVar[str] = "the run has no valid name"
    heading: ClassVar[str] = "Run"

    run: str = parameter(
        "", "Name of the run; an unfinished run is resumed (default: the run ID).", common=True
    )
    runs: str = parameter(
        "runs", "URI of the folder that holds all runs, a path or s3://bucket/prefix.", form="storage_runs"
    )
    run_id: str = parameter("", "Run ID assigned by the engine, the same for every retry.")

    @property
    def named(self) -> Run | None:
        """The run; None if no name is given."""
        name = self.run or self.run_id
        return Run.named(self.runs, name) if name else None

    @property
    def required(self) -> Run:
        """The run."""
        if found := self.named:
            return found
        raise ParameterError(
            what="the step cannot start",
            which=f"runs in {self.runs}",
            seen="`run` is missing",
            do="Give the name of a run: `ddpipe runs ls` lists them.",
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its folder, `<runs>/<name>`."""

    uri: str

    @classmethod
    def named(cls, runs: str, name: str) -> Run:
        """The run `name` in the folder `runs`."""
        if not NAME.fullmatch(name):
            raise ParameterError(
                what="the name of the run is not valid",
                which=repr(name),
                seen="a name consists of letters, digits, '.', '_' and '-' and starts with a letter or digit",
                do="Choose another one with `run`.",
            )
        return cls(f"{runs.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the folder."""
        return self.uri.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder of all runs."""
        return self.uri.rpartition("/")[0]

    @property
    def training(self) -> str:
        """Checkpoints, metrics and event files."""
        return f"{self.uri}/training"

    @property
    def evaluation(self) -> str:
        """Metrics and predictions on the test split."""
        return f"{self.uri}/evaluation"

    @property
    def gate(self) -> str:
        """The verdict of the gate."""
        return f"{self.uri}/gate"

    @property
    def model(self) -> str:
        """The exported model package."""
        return f"{self.uri}/model"

    @property
    def data_report(self) -> str:
        """HTML report on the dataset version."""
        return f"{self.uri}/data.html"

    @property
    def report(self) -> str:
        """HTML report on the run."""
        return f"{self.uri}/report.html"

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Record how a step ends: its time and the yielded facts, or its error."""
        # The record is `<run>/steps/<name>.json`; running the step again replaces it. A run whose very first
        # input is rejected leaves no record, and so no folder.
        facts: dict[str, Any] = {}
        with suppress(CorruptObject):  # it is replaced; a newer one is not
            self.facts(name)
        started, clock = datetime.now(UTC), time.monotonic()

        def write(**outcome: object) -> None:
            record = {
                "schema": SCHEMA,
                "step": name,
                "started": started.isoformat(timespec="milliseconds"),
                "seconds": round(time.monotonic() - clock, 3),
                **outcome,
                "facts": facts,
            }
            open_store(self.uri).write(f"steps/{name}.json", json.dumps(record, indent=1).encode())

        _log.info("%s: started", name)
        with tracked(self.uri) as tracker:
            if tracker.is_on and self.has_begun:
                tracker.status("RUNNING")
            try:
                yield facts
            except DdpipeError as error:
                if not isinstance(error, InputError) or self.has_begun:
                    write(status="failed", error=error.as_dict())
                    tracker.facts(name, {**facts, "error": str(error)})
                    tracker.status("KILLED" if isinstance(error, Interrupted) else "FAILED")
                raise
            write(status="succeeded")
            tracker.facts(name, {**facts, "seconds": round(time.monotonic() - clock, 3)})
            tracker.status("FINISHED")
        _log.info("%s: done in %.1f s", name, time.monotonic() - clock)

    @property
    def has_begun(self) -> bool:
        """Whether anything has been written to its folder, apart from the leases of processes."""
        return any(not item.key.startswith(LEASE) for item in open_store(self.uri).list())

    def facts(self, step: str) -> dict[str, Any]:
        """The facts of a step's last record; none if it never ran."""
        try:
            facts: dict[str, Any] = _record(open_store(self.uri), f"steps/{step}.json")["facts"]
        except NoSuchObject:
            return {}
        return facts

    def origin(self, step: str) -> Run:
        """The run that a step's result comes from: this one, or an earlier one whose result it reuses."""
        earlier = self.facts(step).get("same_as")
        return Run.named(self.folder, str(earlier)) if earlier else self

    def steps(self) -> list[dict[str, Any]]:
        """The records of the steps so far, by their start."""
        store = open_store(self.uri)
        keys = [item.key for item in store.list("steps/")]
        records = [_record(store, key) for key in keys if key.endswith(".json")]
        return sorted(records, key=lambda record: record["started"])

    def state(self) -> str:
        """In a server's words: SUCCEEDED, FAILED, STOPPED, RUNNING or UNFINISHED."""
        store = open_store(self.uri)
        if held_folders(store.list(LEASE)):
            return "RUNNING"
        records = {record["step"]: record for record in self.steps()}
        failed = [record["error"] for record in records.values() if record["status"] == "failed"]
        if failed:
            return "STOPPED" if failed[-1]["error"] == Interrupted.__name__ else "FAILED"
        ended = "export" in records or not records.get("gate", {"facts": {}})["facts"].get("export", True)
        return "SUCCEEDED" if ended else "UNFINISHED"


# Fields of a step's record, and their types.
_RECORDED = {"step": str, "started": str, "seconds": int | float, "status": str, "facts": dict}


def _record(store: Store, key: str) -> dict[str, Any]:
    """The record of a step; raises `CorruptObject` if no step wrote it."""
    try:
        record: dict[str, Any] = json.loads(store.read(key))
        check_schema(record, SCHEMA, f"{store.uri}/{key}")
        wrong = [name for name, kind in _RECORDED.items() if not isinstance(record.get(name), kind)]
        wrong += ["error"] if record.get("status") == "failed" and "error" not in record["error"] else []
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        wrong = [repr(error)]
    if wrong:
        raise CorruptObject(
            what="the record of a step is malformed",
            which=f"{store.uri}/{key}",
            seen=f"not as a step writes it: {', '.join(wrong)}",
            do="Delete it and run the step again.",
        )
    return record


def runs_in(folder: str, count: int) -> list[tuple[Run, datetime]]:
    """The newest runs of a folder, each with the time at which its first step ended."""
    begun: dict[str, datetime] = {}
    for item in open_store(folder).list():
        match item.key.split("/"):
            case [name, "steps", _] if NAME.fullmatch(name):
                begun[name] = min(item.modified, begun.get(name, item.modified))
    newest = sorted(begun, key=lambda name: begun[name], reverse=True)[:count]
    return [(Run.named(folder, name), begun[name]) for name in newest]


@contextmanager
def working_in(folder: str, *others: str, what: str) -> Iterator[None]:
    """Work in a folder under its lease; it and the others must be writable. A stop raises Interrupted."""

    def stop() -> NoReturn:
        raise Interrupted(
            what=f"{what} was interrupted",
            which=folder,
            seen="a stop signal arrived; what it had finished is saved",
            do=Interrupted.AGAIN,
        )

    with removed_if_rejected(folder, *others):
        for one in (folder, *others):
            open_store(one).check_writable()
        with on_stop(stop), lease(open_store(folder)):
            yield


@contextmanager
def removed_if_rejected(*folders: str) -> Iterator[None]:
    """When an input is rejected, remove the local folders that were made for it, as far as they are empty."""
    places = [place for folder in folders if (place := open_store(folder).local_path("."))]
    made = [one for place in places for one in (place, *place.parents) if not one.exists()]
    try:
        yield
    except InputError:
        for place in sorted(made, key=lambda one: len(one.parts), reverse=True):
            with suppress(OSError):  # it has content, or was never made
                place.rmdir()
        raise
