"""A trial of a study as a plain value, for the result and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        number: Counted from 0.
        state: complete, pruned, failed or running.
        values: Of the hyperparameters that are searched.
        score: Of the trained model on the validation split, or of the last epoch before it was pruned.
        curve: The score of each epoch.
        seconds: That its epochs took.
        error: Why it failed; empty if it did not.
    """

    number: int
    state: str
    values: Mapping[str, Any]
    score: float | None
    curve: Sequence[float]
    seconds: float
    error: str = ""

    @classmethod
    def of(cls, frozen: FrozenTrial) -> Trial:
        """From the ledger."""
        return cls(
            number=frozen.number,
            state=STATES[frozen.state],
            values=dict(frozen.params),
            score=frozen.value if frozen.state.is_finished() else None,
            curve=[frozen.intermediate_values[epoch] for epoch in sorted(frozen.intermediate_values)],
            seconds=float(frozen.user_attrs.get("seconds", 0.0)),
            error=str(frozen.user_attrs.get("error", "")),
        )


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The complete trial with the highest score, the first of equal ones; None if there is none."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.score is not None]
    return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)


def written(values: Mapping[str, Any]) -> str:
    """Values as in a message: `learning_rate=0.1, optimizer=sgd`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())
