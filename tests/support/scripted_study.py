"""A search whose trials are scripted, as a process: python scripted_study.py FOLDER TRIALS PRUNING."""

from __future__ import annotations

import sys
from pathlib import Path

import scripted_trial
from recipes import plain

from ddpipe.processes.machine import on_stop
from ddpipe.search import SearchOptions
from ddpipe.search.space import parsed
from ddpipe.train.recipe import Recipe
from ddpipe.tune.process import TrialSetup
from ddpipe.tune.searching import Search
from ddpipe.tune.study import Study
from ddpipe.tune.trials import Ledger, Trial

RECIPE = plain(learning_rate=0.02, epochs=4, seed=3)
SPACE = ("learning_rate=log(0.001,0.4)", "label_smoothing=0..0.2", "optimizer=sgd,adamw")


def search(folder: Path, trials: int, recipe: Recipe = RECIPE, parallel: int = 1, **given: object) -> Search:
    options = SearchOptions.from_dict({"search": list(SPACE), "trials": trials, **given})
    space = parsed(options.search)
    return Search(
        Study(folder),
        space,
        Ledger(folder, space),
        recipe,
        options,
        TrialSetup("dataset", 1, parallel),
        "validation_accuracy",
        scripted_trial.started,
    )


def facts(trials: list[Trial]) -> list[tuple[object, ...]]:
    """What must not depend on interruptions."""
    return [(one.number, one.state, dict(one.values), one.score, list(one.curve)) for one in trials]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    with on_stop(sys.exit):
        search(place, int(sys.argv[2]), pruning=sys.argv[3]).run()
