"""The folder of a run: where each step puts its results, and the record of how each step went."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from ddpipe.errors import DdpipeError, NoSuchObject, ParameterError
from ddpipe.parameters import Parameters, parameter
from ddpipe.spelling import option
from ddpipe.storage import open_store

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Parameters):
    """Which run a step belongs to."""

    what: ClassVar[str] = "the run cannot be named"
    heading: ClassVar[str] = "Run"

    run: str = parameter(
        "", "Name of the run; an unfinished run is resumed (default: the run ID).", common=True
    )
    runs: str = parameter(
        "runs", "URI of the folder that holds all runs, a path or s3://bucket/prefix.", form="storage_runs"
    )
    run_id: str = parameter("", "Run ID assigned by the engine, the same for every retry.")
    run_title: str = parameter("", "Title of the run in the report (default: its name).")

    @property
    def named(self) -> Run | None:
        """The run, if it has a name.

        Raises:
            ParameterError: The name could leave the folder or is no file name.
        """
        name = self.run or self.run_id
        return replace(Run.named(self.runs, name), title=self.run_title) if name else None

    @property
    def required(self) -> Run:
        """The run.

        Raises:
            ParameterError: It has no name, or a wrong one.
        """
        return self.named or Run.named(self.runs, "")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the pipeline.

    Attributes:
        uri: Its folder: `<runs>/<name>`, a plain path or s3://.
        title: What people call it; empty: its name.
    """

    uri: str
    title: str = ""

    @classmethod
    def named(cls, runs: str, name: str) -> Run:
        """The run `name` below the folder `runs`.

        Raises:
            ParameterError: The name could leave the folder or is no file name.
        """
        if not NAME.fullmatch(name):
            raise ParameterError(
                what="the name of the run is not valid",
                which=repr(name),
                seen="a name consists of letters, digits, '.', '_' and '-' and starts with a letter or digit",
                do=f"Choose another one with {option('run')}.",
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
    def model(self) -> str:
        """The exported model package."""
        return f"{self.uri}/model"

    @property
    def data_report(self) -> str:
        """The page about the dataset version."""
        return f"{self.uri}/data.html"

    @property
    def report(self) -> str:
        """The report for people."""
        return f"{self.uri}/report.html"

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Record how a step went: its time and what is put into the yielded facts, or its error.

        The record is `<run>/steps/<name>.json`; running the step again replaces it.
        """
        facts: dict[str, Any] = {}
        started, clock = datetime.now(UTC), time.monotonic()

        def write(**outcome: object) -> None:
            record = {
                "step": name,
                "started": started.isoformat(timespec="milliseconds"),
                "seconds": round(time.monotonic() - clock, 3),
                **outcome,
                "facts": facts,
            }
            open_store(self.uri).write(f"steps/{name}.json", json.dumps(record, indent=1).encode())

        _log.info("%s: started", name)
        try:
            yield facts
        except DdpipeError as error:
            write(status="failed", error=error.as_dict())
            raise
        write(status="succeeded")
        _log.info("%s: done in %.1f s", name, time.monotonic() - clock)

    def facts(self, step: str) -> dict[str, Any]:
        """The facts of a step's last record; none if it never ran."""
        try:
            record: dict[str, dict[str, Any]] = json.loads(open_store(self.uri).read(f"steps/{step}.json"))
        except NoSuchObject:
            return {}
        return record["facts"]

    def origin(self, step: str) -> Run:
        """The run whose result of a step is this one's: itself, or an earlier one that it took over from."""
        earlier = self.facts(step).get("same_as")
        return Run.named(self.folder, earlier) if earlier else self

    def steps(self) -> list[dict[str, Any]]:
        """The records of the steps so far, in the order in which they started."""
        store = open_store(self.uri)
        keys = [item.key for item in store.list("steps/")]
        records: list[dict[str, Any]] = [json.loads(store.read(key)) for key in keys if key.endswith(".json")]
        return sorted(records, key=lambda record: record["started"])
