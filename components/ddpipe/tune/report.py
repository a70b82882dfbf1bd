"""A study -> one self-contained HTML report: no script, nothing fetched, every name escaped."""

from __future__ import annotations

from ddpipe.evaluate.report import duration, percent
from ddpipe.model.metrics import TITLES
from ddpipe.templates import environment
from ddpipe.train.recipe import Recipe
from ddpipe.tune.figures import learning_curves, parallel_coordinates, scores
from ddpipe.tune.findings import Findings

MOST = 200
"""Trials in the table: the best ones."""


def render(found: Findings) -> str:
    """The page."""
    pages = environment("ddpipe.tune")
    pages.filters.update(duration=duration, percent=percent)
    plain = found.metric.removeprefix("validation_")
    title = f"validation {TITLES.get(plain, plain)}"
    first = found.trials[0]
    ranked = sorted(found.trials, key=lambda one: (one.state != "complete", -(one.score or 0), one.number))
    default = Recipe().to_dict()
    return pages.get_template("report.html.j2").render(
        found=found,
        title=title,
        first=first if first.state == "complete" and first.number != found.best.number else None,
        ranked=ranked[:MOST],
        left_out=max(0, len(ranked) - MOST),
        seconds=sum(one.seconds for one in found.trials),
        longest=max(one.seconds for one in found.trials) or 1,
        changed={name: value for name, value in found.recipe.shaping().items() if value != default[name]},
        figures={
            f"{title} by trial": scores(found.trials, found.best, title),
            f"{title} by epoch": learning_curves(found.trials, found.best, title),
        },
        parallel=parallel_coordinates(found.space, found.trials, found.best, title),
    )
