"""The step: compare a trained and evaluated model with the champion on the same images, and decide.

evaluation of the run ─┐
├─ images that neither was trained on ──▶ rules (gate.py) ──▶ verdict
champion of the store ─┘
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.data.seen import Hashes, are_in
from ddpipe.errors import ParameterError
from ddpipe.evaluate.champion import Champion, NotComparable, champion_of, logits_of_champion
from ddpipe.evaluate.gate import compare, decide, first, metric_of
from ddpipe.evaluate.gate_spec import GateSpec
from ddpipe.evaluate.metrics import Answers
from ddpipe.evaluate.paired import METRICS
from ddpipe.model.classifier import samples_seen
from ddpipe.model.evaluation import Evaluation, load_evaluation
from ddpipe.model.history import NamedModel
from ddpipe.model.package import seen_by
from ddpipe.model.tasks import TASKS, BoolArray
from ddpipe.model.verdict import Comparison, Verdict, publish
from ddpipe.spelling import option
from ddpipe.storage import open_store

SHOWN = 24
"""Images of each kind that the report shows."""

_log = logging.getLogger(__name__)


def gate(
    training_uri: str,
    manifest_uri: str,
    evaluation_uri: str,
    output_uri: str,
    spec: GateSpec,
) -> Verdict:
    """Decide whether a model replaces the champion, and publish the verdict. Nothing is promoted here."""
    spec = spec.validated()
    manifest, evaluation = load_manifest(manifest_uri), load_evaluation(evaluation_uri)
    _check(spec, manifest, evaluation, manifest_uri)
    if spec.gate_slice_loss < 1 and not evaluation.metrics.slices:
        _log.warning(
            "%s is %g, but the evaluation %s has no slices, so that none is judged: evaluate with %s and %s",
            option("gate_slice_loss"),
            spec.gate_slice_loss,
            evaluation_uri,
            option("slice_columns"),
            option("slice_table"),
        )
    store = store_of(manifest_uri)
    model, task = NamedModel(store, spec.gate_model), TASKS[manifest.task]
    metric = metric_of(spec, task)
    split = evaluation.subject.split
    samples = open_split((manifest, store), split)
    logits, labels = evaluation.calibrated()
    own = Answers.of(task, logits, labels, evaluation.metrics.thresholds)
    seen = {"the new model": samples_seen(training_uri)}
    promotion = model.history().champion
    rival: Answers | None = None
    trouble = source = ""
    if promotion:
        try:
            champion = champion_of(model, promotion, manifest)
            shape = champion.package.signature.shape
            seen_by_it = open_split((manifest, store), split, shape=shape)
            theirs, source = logits_of_champion(champion, manifest, seen_by_it, split)
            rival = Answers.of(task, theirs, labels, _thresholds(champion, exclusive=task.exclusive))
            seen[f"the champion {champion.version}"] = seen_by(champion.package.folder)
        except NotComparable as problem:
            trouble = str(problem)
    unseen = _unseen(samples, seen.values())
    groups = None if samples.groups is None else samples.groups[unseen]
    own = own.of_samples(unseen)
    comparison: Comparison | None = None
    if rival and unseen.any():
        rival = rival.of_samples(unseen)
        slices = _slices(evaluation, unseen)
        comparison = compare(own, rival, manifest.classes, task, spec, groups, slices)
    elif not unseen.any():
        trouble = trouble or "there is no image that neither model was trained on: add new test images"
    verdict = decide(
        spec,
        metric=metric,
        value=first(own, metric) if unseen.any() else float("nan"),
        champion=promotion.version if promotion else "",
        comparison=comparison,
        trouble=trouble,
    )
    unknown = [name for name, hashes in seen.items() if hashes is None]
    verdict = replace(
        verdict,
        excluded=int((~unseen).sum()),
        unknown=f"{' and '.join(unknown)} do not say what they were trained on" if unknown else "",
        source=source,
    )
    publish(open_store(output_uri), verdict, _differences(own, rival, np.flatnonzero(unseen)))
    _log.info("%s: %s", verdict.decision, verdict.reason)
    return verdict


def _check(spec: GateSpec, manifest: DatasetManifest, evaluation: Evaluation, manifest_uri: str) -> None:
    task = TASKS[manifest.task]
    problems = {
        "no model is named: give its name as parameter gate": not spec.gate_model,
        f"the evaluation used dataset version {evaluation.subject.dataset_id}": (
            evaluation.subject.dataset_id != manifest.dataset_id
        ),
        f"a {task.name} dataset has no {spec.gate_metric}; it has "
        f"{', '.join(name for name in task.scores if name in METRICS)}": (
            metric_of(spec, task) not in task.scores
        ),
    }
    if wrong := [text for text, is_so in problems.items() if is_so]:
        raise ParameterError(
            what="the gate cannot decide",
            which=manifest_uri,
            seen="; ".join(wrong),
            do="Correct the parameters of the gate, or evaluate on this dataset version first.",
        )


def _thresholds(champion: Champion, *, exclusive: bool) -> Sequence[float | None]:
    signature = champion.package.signature
    return [None] * len(signature.classes) if exclusive else signature.thresholds


def _unseen(samples: SplitReader, seen: Iterable[Hashes | None]) -> BoolArray:
    """Which samples no model was trained on, shape (samples,)."""
    unseen: BoolArray = np.ones(len(samples), bool)
    for hashes in seen:
        if hashes is not None:
            unseen &= ~are_in(samples.sample_ids.column, hashes)
    return unseen


def _slices(evaluation: Evaluation, kept: BoolArray) -> dict[str, BoolArray]:
    """The slices of an evaluation by name: of the samples that are kept, which ones each has."""
    slicing = evaluation.slicing()
    if slicing is None:
        return {}
    named = zip(evaluation.metrics.slices, slicing.each(), strict=True)
    return {one.name: mask[kept] for one, (_, _, mask) in named}


def _differences(own: Answers, rival: Answers | None, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The images that one model gets right and the other wrong, the largest difference first."""
    if rival is None:
        return np.empty((0, 2), np.int64)
    apart = np.abs(((own.probabilities - rival.probabilities) * own.truth).sum(axis=1))
    rows = []
    for better, which in ((1, own.right & ~rival.right), (0, rival.right & ~own.right)):
        chosen = np.flatnonzero(which)
        chosen = chosen[np.argsort(-apart[chosen], kind="stable")][:SHOWN]
        rows += [(int(places[one]), better) for one in chosen]
    return np.array(rows, np.int64).reshape(-1, 2)
