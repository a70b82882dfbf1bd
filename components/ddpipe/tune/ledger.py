"""The trials of a study, in Optuna's journal: one line appended for each thing that happens.

The file is Optuna's own format, so that its other tools read it. A trial is in it from the moment at which
its values are decided, in a single line; its end is in it once everything else about it is. A process that is
killed between two lines leaves a trial that still runs, and that the next process resumes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from ddpipe.search.space import Space
from ddpipe.tune.advice import distributions
from ddpipe.tune.study import damaged

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
