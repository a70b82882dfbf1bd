"""One trial, as a process of its own: an ordinary run that ends after its training.

python -m ddpipe.tune --run studies/digits/trials/0003 --dataset …/manifest.json --recipe '{"epochs": 3}'

It ends with the process that started it: a study that was killed leaves nothing that works on its trials.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from threading import Thread
from typing import NoReturn

import click

from ddpipe import workflow
from ddpipe.errors import DdpipeError, Interrupted
from ddpipe.jobs.job import Owner
from ddpipe.processes.machine import clean_up_and_leave, is_alive, leave, on_stop, search_rarely
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease
from ddpipe.train.recipe import Recipe

PARENT = "DDPIPE_STUDY"
"""The environment variable with the process that started this one."""

_LOOK_SECONDS = 0.5


@click.command()
@click.option("--run", required=True, help="Folder of the trial's run.")
@click.option("--dataset", required=True, help="URI of the dataset version's manifest.")
@click.option("--recipe", required=True, help="Hyperparameters as a JSON object.")
@click.option("--processes", default=1, show_default=True, help="Training processes.")
def main(run: str, dataset: str, recipe: str, processes: int) -> None:
    """Train one trial."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    if parent := os.environ.pop(PARENT, ""):
        Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    try:
        train(Run(run), dataset, Recipe.from_json(recipe), processes)
    except DdpipeError as error:
        sys.stderr.write(f"{error}\n")
        clean_up_and_leave(error.exit_code)
    clean_up_and_leave(0)


def train(run: Run, dataset: str, recipe: Recipe, processes: int) -> None:
    """Train the run, or resume it."""

    def stop() -> NoReturn:
        raise Interrupted(
            what="the trial was interrupted",
            which=run.uri,
            seen="a stop signal arrived before the training",
            do="Run the command of the study again to resume.",
        )

    with on_stop(stop), lease(open_store(run.uri)):
        if not run.facts("prepare"):
            workflow.use(run, dataset)
        workflow.train(run, dataset, recipe, TrainOptions(processes=processes), Owner())


def _end_with(parent: int) -> None:
    """End this process at once when its parent is gone; the processes that train notice, save, and stop."""
    while is_alive(parent):
        time.sleep(_LOOK_SECONDS)
    leave(Interrupted.exit_code)


if __name__ == "__main__":
    search_rarely()
    main()
