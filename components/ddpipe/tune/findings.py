"""What a study found: the best trial and its recipe, and all the others, for the caller and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddpipe.search.space import Space, recipe_with
from ddpipe.train.recipe import Recipe
from ddpipe.tune.study import Study
from ddpipe.tune.trial import Trial, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a search.

    Attributes:
        study: Where everything is.
        space: What was searched.
        base: Values of the hyperparameters that were not searched.
        metric: The name of the score; larger is better.
        trials: All.
        best: The best one.
        importance: The share of each hyperparameter in what the trials differ by; empty if unknown.
        seconds: Of the call that ended the search.
    """

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
