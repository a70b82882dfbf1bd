"""A trial's process without a training: scores follow from the learning rate, epoch by epoch.

python scripted_trial.py RUN RECIPE      the best rate is 0.1; above 0.5 it fails; it resumes like a training
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from ddpipe.errors import Diverged, Interrupted
from ddpipe.processes.machine import act_without, leave
from ddpipe.runs import Run
from ddpipe.storage import open_store
from ddpipe.train.recipe import Recipe
from ddpipe.tune.process import PARENT, TrialProcess, TrialSetup

EPOCH_SECONDS = 0.02


def score(rate: float, epoch: int) -> float:
    return round(max(0.0, 1 - abs(math.log10(rate) + 1) / 2) * (1 - 0.5**epoch), 6)


def started(run: Run, recipe: Recipe, work: TrialSetup) -> TrialProcess:
    """In place of `TrialProcess.started`."""
    log = Path(run.uri, "log.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, __file__, run.uri, recipe.to_json()],
            env={**os.environ, PARENT: str(os.getpid())},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return TrialProcess(run, recipe, process, log)


def main(uri: str, text: str) -> None:
    act_without(PARENT, lambda: leave(Interrupted.exit_code))
    run, recipe = Run(uri), Recipe.from_json(text)
    store = open_store(run.training)
    lines = store.read("metrics.jsonl").decode().splitlines() if store.exists("metrics.jsonl") else []
    history = list(map(json.loads, lines))
    with run.step("train"):
        while len(history) < recipe.epochs:
            time.sleep(EPOCH_SECONDS)
            epoch = len(history) + 1
            if recipe.learning_rate > 0.5:
                raise Diverged(what="training diverged", which="here", seen="the loss is nan", do="Lower it.")
            history.append(
                {"epoch": epoch, "validation_accuracy": score(recipe.learning_rate, epoch), "seconds": 1.0}
            )
            store.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in history).encode())
        record = {
            "recipe": recipe.to_dict(),
            "world_size": 1,
            "device": "cpu",
            "torch": "2.15.0",
            "epochs": recipe.epochs,
            "steps": recipe.epochs,
            "seconds": float(recipe.epochs),
            "images_per_second": 1.0,
            "resumed_from": None,
            "history": history,
            "final": {"validation_accuracy": history[-1]["validation_accuracy"]},
        }
        store.write("training.json", json.dumps(record).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
