"""The trials of a study: as plain values, and in Optuna's journal, one line appended for each event.

The file is Optuna's own format, so that its other tools read it. A trial is in it from the moment at which
its values are decided, in a single line; its end is in it once everything else about it is. A process that is
killed between two lines leaves a trial that still runs, and that the next process resumes.

What Optuna answers (the next values, when a trial stops, what matters) follows from the trials so far alone:
an interrupted study that continues gets the same answers, and no sampler's state has to survive a crash.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from ddpipe.search.space import Choice, Range, Space
from ddpipe.tune.study import damaged

STARTUP = 8  # trials with random values, before TPE models those so far
DIGITS = 4  # significant digits of a proposed number: nobody needs more, and they can be read and typed

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms."""
    found: dict[str, BaseDistribution] = {}
    for item in space.dimensions:
        match item:
            case Choice():
                found[item.name] = CategoricalDistribution(item.values)
            case Range(whole=True):
                found[item.name] = IntDistribution(int(item.low), int(item.high), log=item.log)
            case Range():
                found[item.name] = FloatDistribution(item.low, item.high, log=item.log)
    return found


def proposed(space: Space, sampler: str, seed: int, past: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The values of the next trial; the same for the same trials so far."""
    own_seed = int.from_bytes(hashlib.sha256(f"{seed} {len(past)}".encode()).digest()[:4])
    own: BaseSampler = RandomSampler(seed=own_seed)
    if sampler != "random":
        own = TPESampler(n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=own_seed)
    values = _study(sampler=own, past=past).ask(distributions(space)).params
    for item in space.dimensions:
        if isinstance(item, Range) and not item.whole:
            rounded = float(f"{values[item.name]:.{DIGITS}g}")
            values[item.name] = min(max(rounded, item.low), item.high)
    return {name: values[name] for name in space.names}


def pruned(pruning: str, scores: Sequence[float], past: Sequence[FrozenTrial]) -> int | None:
    """The epoch after which a trial stops; None if it continues."""
    pruner = MedianPruner(n_startup_trials=4) if pruning == "median" else NopPruner()
    trial = _study(pruner=pruner, past=past).ask()
    for epoch, score in enumerate(scores, start=1):
        trial.report(score, epoch)
        if trial.should_prune():
            return epoch
    return None


def importance(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """The share of each hyperparameter in what the trials differ by, the largest first; empty if unknown."""
    study = _study(past=[trial for trial in trials if trial.state is TrialState.COMPLETE])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental; or too few trials, which give equal shares
        try:
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (ValueError, RuntimeError):  # fewer than two, or all alike
            return {}
    return {name: float(share) for name, share in found.items()} if len(set(found.values())) > 1 else {}


def _study(
    *, sampler: BaseSampler | None = None, pruner: BasePruner | None = None, past: Sequence[FrozenTrial] = ()
) -> optuna.Study:
    """A study in memory, with trials."""
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.add_trials(past)
    return study


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial; its score is that of the trained model, or of the last epoch before it was pruned."""

    number: int
    state: str  # complete, pruned, failed or running
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
            state="failed" if frozen.state is TrialState.FAIL else frozen.state.name.lower(),
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

NAME = "study"  # of the only study in the file


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

    def end(self, number: int, state: TrialState, *, score: float | None = None, **facts: object) -> None:
        """End a trial."""
        key = self.trials()[number]._trial_id  # noqa: SLF001 - storage's own key
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
