"""The search: trials begin, are watched epoch by epoch, and end; the ledger has every decision.

One process decides, and each trial trains in a process of its own. Decisions are functions of the trials in
the ledger (trials.py), so that a study that is killed and continues makes the same ones; with trials at the
same time, they also depend on which ends first.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from optuna.trial import TrialState

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.errors import DdpipeError, Interrupted, ParameterError, TrialsFailed, listed
from ddpipe.model.tasks import TASKS
from ddpipe.model.training_record import training_record
from ddpipe.processes.machine import cpus
from ddpipe.runs import Run
from ddpipe.search import MAX_FAILED, SearchOptions
from ddpipe.search.space import Space, checked, parsed, recipe_with
from ddpipe.storage import write_uri
from ddpipe.train.auto import Device
from ddpipe.train.recipe import Recipe
from ddpipe.tune.process import Record, TrialProcess, TrialSetup
from ddpipe.tune.report import Findings, render
from ddpipe.tune.study import Settings, Study, winner_json
from ddpipe.tune.trials import Ledger, Trial, best_of, importance, proposed, pruned, written

_LOOK_SECONDS = 0.2

_CAUSES = 5  # failed trials whose causes a message lists
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Search:
    """A search under way; `recipe` has what is not searched, and the values of the first trial."""

    study: Study
    space: Space
    ledger: Ledger
    recipe: Recipe
    options: SearchOptions
    work: TrialSetup
    metric: str
    start: Callable[[Run, Recipe, TrialSetup], TrialProcess] = TrialProcess.started
    running: dict[int, TrialProcess] = field(default_factory=dict)

    def run(self) -> tuple[list[Trial], Trial]:
        """Run all trials that are missing; all trials of the study, and the best one."""
        pause = Event()
        try:
            self._begin_more()
            while self.running:
                for number, process in list(self.running.items()):
                    if self._has_ended(number, process):
                        del self.running[number]
                        self._say(number)
                self._begin_more()
                pause.wait(_LOOK_SECONDS)
        finally:
            for process in self.running.values():
                with suppress(OSError):
                    process.stop()
            for process in self.running.values():
                process.wait()
        trials = self.trials()
        return trials, self._best(trials)

    def trials(self) -> list[Trial]:
        """All trials so far."""
        return list(map(Trial.of, self.ledger.trials()))

    def _begin_more(self) -> None:
        """Resume trials that have begun, then begin new ones, as many as may run at the same time."""
        trials = self.ledger.trials()
        begun = [item.number for item in trials if not item.state.is_finished()]
        for number in begun:
            if number not in self.running and len(self.running) < self.work.parallel:
                self._start(number, trials[number].params)
        failed = sum(item.state is TrialState.FAIL for item in trials)
        while (
            len(self.running) < self.work.parallel
            and len(trials) < self.options.trials
            and failed <= MAX_FAILED
        ):
            values = self.space.of(self.recipe)  # of the first trial, so that nothing gets worse
            if trials or values not in self.space:
                values = proposed(self.space, self.options.sampler, self.recipe.seed, trials)
            self._start(self.ledger.begin(values), values)
            trials = self.ledger.trials()

    def _start(self, number: int, values: Mapping[str, Any]) -> None:
        try:
            recipe = recipe_with(self.recipe, values)
        except ParameterError as error:
            self.ledger.end(number, TrialState.FAIL, error=str(error))
            self._say(number)
            return
        self.running[number] = self.start(self.study.run(number), recipe, self.work)

    def _has_ended(self, number: int, process: TrialProcess) -> bool:
        """Look at a trial: note its epochs, stop it if it is pruned, end it if its process has ended."""
        ended = process.has_ended  # before its files are read, which are whole then
        record = training_record(process.run.training) if ended and process.succeeded else None
        history: Sequence[Record] = record["history"] if record else process.history()
        if not ended and len(history) == process.judged:
            return False
        process.judged = len(history)
        scores = [epoch[self.metric] for epoch in history]
        last = pruned(self.options.pruning, scores[: process.recipe.epochs - 1], self.ledger.ended())
        if last:
            process.stop()
            process.wait()
        self.ledger.report(number, scores[:last])
        if last:
            seconds = _seconds(history[:last])
            self.ledger.end(number, TrialState.PRUNED, score=scores[last - 1], seconds=seconds)
        elif record:
            score = record["final"][self.metric]
            self.ledger.end(number, TrialState.COMPLETE, score=score, seconds=_seconds(history))
        elif ended:
            self._fail(number, history, process.failure())
        return ended or last is not None

    def _fail(self, number: int, history: Sequence[Record], error: DdpipeError) -> None:
        if isinstance(error, Interrupted):
            raise Interrupted(
                what="the study was interrupted",
                which=str(self.study.folder),
                seen=f"trial {number} was stopped from outside",
                do=Interrupted.AGAIN,
            )
        self.ledger.end(number, TrialState.FAIL, error=str(error), seconds=_seconds(history))

    def _say(self, number: int) -> None:
        """One line about a trial that has ended."""
        trials = self.trials()
        trial, best = trials[number], best_of(trials)
        score = (
            f"{self.metric}={trial.score:.4f}" if trial.score is not None else trial.error.partition("\n")[0]
        )
        so_far = f", best {best.score:.4f} of trial {best.number}" if best else ""
        _log.info(
            "trial %d %s, %d of %d: %s; %s; %.1f s%s",
            *(number, trial.state, sum(one.state != "running" for one in trials), self.options.trials),
            *(score, written(trial.values), trial.seconds, so_far),
        )

    def _best(self, trials: Sequence[Trial]) -> Trial:
        failed, best = [trial for trial in trials if trial.state == "failed"], best_of(trials)
        if best and len(failed) <= MAX_FAILED:
            return best
        causes = [f"trial {trial.number} ({written(trial.values)}): {trial.error}" for trial in failed]
        raise TrialsFailed(
            what="the search failed",
            which=str(self.study.folder),
            seen=f"{len(failed)} of {len(trials)} trials failed; {listed(causes, _CAUSES)}",
            do="Search other values under another `study`.",
        )


def _seconds(history: Sequence[Record]) -> float:
    return round(math.fsum(epoch["seconds"] for epoch in history), 3)


def tune(study: Study, dataset: str, recipe: Recipe, options: SearchOptions, processes: int) -> Findings:
    """Begin a study, or continue it, and write its report; the caller holds the study's lease."""
    began, manifest = time.monotonic(), load_manifest(dataset)
    # Once for all trials: they differ in what is searched, and in nothing else.
    recipe = _completed(recipe, manifest, processes)
    space = checked(parsed(options.search), recipe)
    work = TrialSetup(dataset, processes, options.parallel_trials)
    _check_room(work)
    study.check(
        Settings(
            search=space.written(),
            recipe=recipe.shaping(),
            dataset=dataset,
            dataset_id=manifest.dataset_id,
            sampler=options.sampler,
            pruning=options.pruning,
            processes=processes,
        )
    )
    metric, ledger = f"validation_{TASKS[manifest.task].scores[0]}", Ledger(study.folder, space)
    trials, best = Search(study, space, ledger, recipe, options, work, metric).run()
    found = Findings(
        study=study,
        space=space,
        base=recipe,
        metric=metric,
        trials=trials,
        best=best,
        importance=importance(ledger.ended()),
        seconds=time.monotonic() - began,
    )
    write_uri(str(study.report), render(found).encode())
    facts = {"study": study.name, "trial": best.number, "metric": metric, "score": best.score}
    write_uri(str(study.best), winner_json(found.recipe, **facts))
    return found


def _completed(recipe: Recipe, manifest: DatasetManifest, processes: int) -> Recipe:
    # seconds to import
    from torch.cuda import is_available  # noqa: PLC0415

    from ddpipe.train.start import fresh_choice  # noqa: PLC0415

    device = Device("cuda" if is_available() else "cpu", processes)
    return fresh_choice(recipe, manifest, device).recipe


def _check_room(work: TrialSetup) -> None:
    """Reject trials that would share CPUs: each would take longer, and none would end sooner."""
    needed = work.parallel * work.processes
    if work.parallel > 1 and needed > cpus():
        raise ParameterError(
            what="the search cannot start",
            which=f"`parallel_trials` {work.parallel}",
            seen=f"processes at the same time: {needed}; CPUs of this machine: {cpus()}",
            do="Run fewer trials at the same time.",
        )
