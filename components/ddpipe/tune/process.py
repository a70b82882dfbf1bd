"""A trial's process as the study sees it: started, watched through the files of its run, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ddpipe.errors import DdpipeError, NoSuchObject, ReplicaFailed, from_dict
from ddpipe.processes.machine import cpus
from ddpipe.runs import Run
from ddpipe.storage import open_store
from ddpipe.train.recipe import Recipe
from ddpipe.tune.__main__ import PARENT

Record = Mapping[str, Any]

_LAST_LINES = 20
_PATIENCE = 60.0
"""Seconds in which a process that is asked to stop saves its state."""


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """What each trial of a study trains on, with how many processes, and how many trials do so at once."""

    dataset: str
    processes: int
    parallel: int

    @property
    def threads(self) -> int:
        """Of each process."""
        return max(1, cpus() // (self.processes * self.parallel))


class TrialProcess:
    """A process that trains one trial; `judged` counts its epochs that were looked at."""

    def __init__(self, run: Run, recipe: Recipe, process: subprocess.Popen[bytes], log: Path) -> None:
        self.run, self.recipe = run, recipe
        self._process, self._log = process, log
        self.judged = 0
        self._seen = ""
        self._history: list[Record] = []

    @classmethod
    def started(cls, run: Run, recipe: Recipe, work: TrialSetup) -> Self:
        """Start the process; what it prints goes to the log of the run."""
        log = Path(run.uri, "log.txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        options = ("--run", run.uri, "--dataset", work.dataset, "--recipe", recipe.to_json())
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", "ddpipe.tune", *options, "--processes", str(work.processes)],
                env={"OMP_NUM_THREADS": str(work.threads), **os.environ, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C reaches the study alone, which stops its trials
            )
        return cls(run, recipe, process, log)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def succeeded(self) -> bool:
        """Whether it ended with a trained model."""
        return self._process.poll() == 0

    def history(self) -> list[Record]:
        """The records of the epochs so far."""
        store = open_store(self.run.training)
        found = next((item for item in store.list("metrics.jsonl") if item.key == "metrics.jsonl"), None)
        if found and found.etag != self._seen:
            with suppress(NoSuchObject):
                lines = store.read("metrics.jsonl").decode().splitlines()
                self._history, self._seen = [json.loads(line) for line in lines], found.etag
        return self._history

    def stop(self) -> None:
        """Ask the process to save and to end."""
        if not self.has_ended:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until the process has ended after `stop`; one that does not is killed."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def failure(self) -> DdpipeError:
        """Why it failed: the error that its run recorded, or what its process printed last."""
        records = {record["step"]: record for record in self.run.steps()}
        error = records.get("train", records.get("prepare", {})).get("error")
        if error:
            return from_dict(error)
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return ReplicaFailed(
            what="the trial's process failed",
            which=self.run.uri,
            seen=f"exit code {self._process.returncode}; last lines:\n" + "\n".join(lines),
            do="Look for the first error among these lines.",
        )
