"""`tune`: a study on a dataset version, begun or continued, to its best recipe and its report."""

from __future__ import annotations

import time

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.errors import ParameterError
from ddpipe.model.tasks import TASKS
from ddpipe.processes.machine import cpus
from ddpipe.search.options import SearchOptions
from ddpipe.search.space import checked, parsed
from ddpipe.search.winner import winner_json
from ddpipe.storage import write_uri
from ddpipe.train.auto import Device
from ddpipe.train.recipe import Recipe
from ddpipe.tune.advice import importance
from ddpipe.tune.process import TrialSetup
from ddpipe.tune.report import Findings, render
from ddpipe.tune.searching import Search
from ddpipe.tune.study import Settings, Study
from ddpipe.tune.trials import Ledger


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
