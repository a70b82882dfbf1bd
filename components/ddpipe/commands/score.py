"""`ddpipe score MODEL`: many images -> tables of predictions, and a page."""

from __future__ import annotations

from typing import Any

from ddpipe.commands.results import Outcome
from ddpipe.commands.shown import Page, Scores
from ddpipe.commands.step import step_command
from ddpipe.serve.naming import package_uri
from ddpipe.serve.scoring import score
from ddpipe.serve.spec import ScoreOptions
from ddpipe.steps import PREDICT


@step_command(PREDICT)
def score_command(model: str, runs: str, store: str, **given: Any) -> Outcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    found = score(package_uri(model, runs, store), ScoreOptions.picked(given))
    counts = {"images": found.images, "unreadable": found.unreadable}
    return Outcome(
        {"predictions": found.uri, **counts, "shares": found.shares},
        f"{found.images:,} images, {found.unreadable:,} of them unreadable\n{found.uri}/predictions.html",
        f"{found.images:,} images",
        values={"predicted": found.uri},
        shown={
            "prediction_metrics": Scores({name: float(value) for name, value in counts.items()}),
            "predictions_page": Page(found.page),
        },
    )
