"""What a study found: for the caller, and as one self-contained HTML report, with its figures as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ddpipe.evaluate.figures import QUIET, TRAIN, VALIDATION, figure, legend_above
from ddpipe.evaluate.report import percent
from ddpipe.model.metrics import TITLES
from ddpipe.processes.reports import duration
from ddpipe.search.space import Space, recipe_with
from ddpipe.templates import environment
from ddpipe.train.recipe import Recipe
from ddpipe.tune.study import Study
from ddpipe.tune.trials import Trial, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a search; `importance` is empty if unknown."""

    study: Study
    space: Space
    base: Recipe
    metric: str
    trials: Sequence[Trial]
    best: Trial
    importance: Mapping[str, float]
    seconds: float

    @property
    def recipe(self) -> Recipe:
        """The whole recipe of the best trial."""
        return recipe_with(self.base, self.best.values)

    @property
    def states(self) -> dict[str, int]:
        """How many trials ended in each way."""
        return dict(Counter(trial.state for trial in self.trials))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "study": str(self.study.folder),
            "metric": self.metric,
            "best": asdict(self.best),
            "recipe": self.recipe.to_dict(),
            "trials": [asdict(trial) for trial in self.trials],
            "importance": dict(self.importance),
            "seconds": round(self.seconds, 3),
            "best_recipe": str(self.study.best),
            "report": str(self.study.report),
        }

    def text(self) -> str:
        """The lines to print."""
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return "\n".join(
            [
                f"study     {self.study.folder}",
                f"trials    {states}, {self.seconds:.1f} s",
                f"best      trial {self.best.number}: {self.metric} {self.best.score:.4f}",
                f"          {written(self.best.values)}",
                f"recipe    {self.study.best}",
                f"findings  {self.study.report}",
            ]
        )


MOST = 200  # trials that a figure draws as lines, and that the table lists: the best ones


def scores(trials: Sequence[Trial], best: Trial, title: str) -> str:
    """The score of each trial in their order, and the best one so far."""

    def draw(axes: Axes) -> None:
        for state, face in (("complete", TRAIN), ("pruned", "none")):
            shown = [one for one in trials if one.state == state and one.score is not None]
            if shown:
                numbers, found = [one.number for one in shown], [one.score or 0 for one in shown]
                axes.scatter(numbers, found, s=22, facecolor=face, edgecolor=TRAIN, label=state)
        steps: list[tuple[int, float]] = []  # the trials that were the best one when they ended
        for one in trials:
            if one.state == "complete" and (not steps or (one.score or 0) > steps[-1][1]):
                steps.append((one.number, one.score or 0))
        steps.append((trials[-1].number, best.score or 0))
        axes.step(
            *zip(*steps, strict=True), where="post", color=VALIDATION, label="best so far", linewidth=1.2
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="trial", ylabel=title)
        legend_above(axes)

    return figure(draw)


def learning_curves(trials: Sequence[Trial], best: Trial, title: str) -> str:
    """The score of each epoch of each trial; the best trial in color."""

    def draw(axes: Axes) -> None:
        # The worst first, so that better ones are drawn over them.
        scored = [trial for trial in trials if trial.score is not None]
        for trial in sorted(scored, key=lambda one: (one.score or 0, -one.number))[-MOST:]:
            if trial.number != best.number and trial.curve:
                _curve(axes, trial, QUIET, "")
        _curve(axes, best, TRAIN, f"trial {best.number}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel="epoch", ylabel=title)
        legend_above(axes)

    return figure(draw)


def _curve(axes: Axes, trial: Trial, color: str, label: str) -> None:
    epochs = range(1, len(trial.curve) + 1)
    axes.plot(epochs, trial.curve, color=color, label=label, linewidth=1.2, marker="o", markersize=2.5)


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
    )
