"""One trial, as a process of its own: an ordinary run that ends after its training.

python -m ddpipe.tune.process --run studies/a/trials/0003 --dataset …/manifest.json --recipe '{"epochs": 3}'

The study starts it, watches it through the files of its run, and stops it. It ends with the process that
started it: a study that was killed leaves nothing that works on its trials.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click

from ddpipe import workflow
from ddpipe.errors import DdpipeError, Interrupted, NoSuchObject, ReplicaFailed, from_dict
from ddpipe.jobs.job import Owner
from ddpipe.model.training_record import METRICS
from ddpipe.processes.machine import act_without, clean_up_and_leave, cpus, leave, search_rarely
from ddpipe.runs import Run, working_in
from ddpipe.steps import TrainOptions
from ddpipe.storage import open_store
from ddpipe.tracker import GIVEN
from ddpipe.train.recipe import Recipe

Record = Mapping[str, Any]

PARENT = "DDPIPE_STUDY"  # the environment variable with the process that started a trial's

_LAST_LINES = 20
_PATIENCE = 60.0  # seconds in which a process that is asked to stop saves its state


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """What each trial of a study trains on, with how many processes, and how many trials do so at once."""

    dataset: str
    processes: int
    parallel: int


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
        threads = max(1, cpus() // (work.processes * work.parallel))
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", "ddpipe.tune.process", *options, "--processes", str(work.processes)],
                # In MLflow each trial is a run of its own.
                env={"OMP_NUM_THREADS": str(threads), **os.environ, GIVEN: "", PARENT: str(os.getpid())},
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
        found = next((item for item in store.list(METRICS) if item.key == METRICS), None)
        if found and found.etag != self._seen:
            with suppress(NoSuchObject):
                lines = store.read(METRICS).decode().splitlines()
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
        if error := records.get("train", records.get("prepare", {})).get("error"):
            return from_dict(error)
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return ReplicaFailed(
            what="the trial's process failed",
            which=self.run.uri,
            seen=f"exit code {self._process.returncode}; last lines:\n" + "\n".join(lines),
            do="Look for the first error among these lines.",
        )


@click.command()
@click.option("--run", required=True, help="Folder of the trial's run.")
@click.option("--dataset", required=True, help="URI of the dataset version's manifest.")
@click.option("--recipe", required=True, help="Hyperparameters as a JSON object.")
@click.option("--processes", default=1, show_default=True, help="Training processes.")
def main(run: str, dataset: str, recipe: str, processes: int) -> None:
    """Train one trial."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    # The processes that train notice that this one is gone, save, and stop.
    act_without(PARENT, lambda: leave(Interrupted.exit_code))
    try:
        train(Run(run), dataset, Recipe.from_json(recipe), processes)
    except DdpipeError as error:
        sys.stderr.write(f"{error}\n")
        clean_up_and_leave(error.exit_code)
    clean_up_and_leave(0)


def train(run: Run, dataset: str, recipe: Recipe, processes: int) -> None:
    """Train the run, or resume it."""
    with working_in(run.uri, what="the trial"):
        if not run.facts("prepare"):
            workflow.use(run, dataset)
        workflow.train(run, dataset, recipe, TrainOptions(processes=processes), Owner())


if __name__ == "__main__":
    search_rarely()
    main()
