"""`ddpipe score MODEL`: many images -> tables of predictions, a page, and a check for drift."""

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
    names = [one.what for one in found.drifted]
    unknown = "no drift" if found.changes else "drift is not known"
    drift = f"drift: {', '.join(names)}" if names else unknown
    counts = {"images": found.images, "unreadable": found.unreadable, "drifted": len(names)}
    return Outcome(
        {"predictions": found.uri, **counts, "shares": found.shares, "drift": names},
        f"{found.images:,} images, {found.unreadable:,} of them unreadable; {drift}\n"
        f"{found.uri}/predictions.html",
        f"{found.images:,} images; {drift}",
        values={"predicted": found.uri, "drift": "yes" if names else "no"},
        shown={
            "prediction_metrics": Scores({name: float(value) for name, value in counts.items()}),
            "predictions_page": Page(found.page),
        },
    )
