"""`ddpipe train`: a dataset version -> a trained model, on this machine or by a job."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from ddpipe import workflow
from ddpipe.commands.presets import chosen_recipe, list_presets_option
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import EventFiles, Scores
from ddpipe.commands.step import step_command
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.runs import RunOptions, removed_if_rejected
from ddpipe.steps import TRAIN_ANYWHERE, ReuseOptions, TrainOptions
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease


@step_command(TRAIN_ANYWHERE)
@list_presets_option
def train_command(dataset: str, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run = RunOptions.picked(given).required
    options, owner = TrainOptions.picked(given), Owner.picked(given)
    reuse = ReuseOptions.picked(given).reuse
    # On a cluster, the name of the job already makes it unique.
    alone = lease(open_store(run.uri)) if options.backend == LOCAL else nullcontext()
    with removed_if_rejected(run.uri), alone:
        record = workflow.train(run, dataset, chosen_recipe(given), options, owner, reuse=reuse)
    training, since = run.origin("train").training, run.facts("train").get("since", "")
    done = f"nothing changed since run {since}: trained model reused" if since else "trained"
    return CommandOutcome(
        {"training": training, "unchanged_since": since, **record},
        training,
        f"{done}, {_scores(record['final'])}: {training}",
        values={"training": training},
        shown={"train_metrics": Scores(record["final"])},
        more=(EventFiles(f"{training}/tensorboard"),),
    )


def _scores(final: Mapping[str, float]) -> str:
    """What validation found at the end."""
    found = {name: value for name, value in final.items() if name.startswith("validation_")}
    found["validation_loss"] = found.pop("validation_loss")  # after what it stands for
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.items())
