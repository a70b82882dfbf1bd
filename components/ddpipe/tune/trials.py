"""The trials of a study: as plain values, and in Optuna's journal, one line appended for each event.

The file is Optuna's own format, so that its other tools read it. A trial is in it from the moment at which
its values are decided, in a single line; its end is in it once everything else about it is. A process that is
killed between two lines leaves a trial that still runs, and that the next process resumes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from ddpipe.search.space import Space
from ddpipe.tune.advice import distributions
from ddpipe.tune.study import damaged

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


FILE = "journal.log"

NAME = "study"
"""Of the only study in the file."""


class Ledger:
    """The trials of one study. The process that uses it holds the lease of the study's folder."""

    def __init__(self, folder: Path, space: Space) -> None:
        """Open the journal in a folder, or begin one; raises `CorruptObject` if it is malformed."""
        path = folder / FILE
        _repair(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._storage = JournalStorage(JournalFileBackend(str(path)))
            self._study = optuna.create_study(
                study_name=NAME, storage=self._storage, direction="maximize", load_if_exists=True
            )
        except Exception as error:  # Optuna expects its own lines, and raises anything for others
            raise damaged(path, error) from error
        self._distributions = distributions(space)

    def trials(self) -> list[FrozenTrial]:
        """All trials, by their numbers."""
        return self._study.get_trials()

    def ended(self) -> list[FrozenTrial]:
        """Those that do not run any more."""
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def begin(self, values: Mapping[str, Any]) -> int:
        """Begin a trial with these values; its number."""
        self._study.add_trial(
            create_trial(state=TrialState.RUNNING, params=dict(values), distributions=self._distributions)
        )
        return len(self.trials()) - 1

    def report(self, number: int, scores: Sequence[float]) -> None:
        """Note the scores of a trial's epochs."""
        trial = self.trials()[number]
        for epoch, score in enumerate(scores, start=1):
            if trial.intermediate_values.get(epoch) != score:
                self._storage.set_trial_intermediate_value(trial._trial_id, epoch, score)  # noqa: SLF001 - storage's own key

    def end(
        self,
        number: int,
        state: TrialState,
        *,
        score: float | None = None,
        notes: Mapping[str, Any] | None = None,
        **facts: object,
    ) -> None:
        """End a trial."""
        key = self.trials()[number]._trial_id  # noqa: SLF001 - storage's own key
        for name, value in (notes or {}).items():
            self._storage.set_trial_system_attr(key, name, value)
        for name, fact in facts.items():
            self._storage.set_trial_user_attr(key, name, fact)
        self._storage.set_trial_state_values(key, state, None if score is None else [score])


def _repair(path: Path) -> None:
    """Remove what a process left that was killed while it wrote: half a line, or a lock."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
