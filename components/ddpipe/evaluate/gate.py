"""The gate: compare a trained and evaluated model with the champion on the same images, and decide.

evaluation of the run ──┐
                        ├──▶ images that neither was trained on ──▶ rules ──▶ verdict
champion of the store ──┘

fail      the new model is below the minimum; or it cannot be compared, as the champion is gone or has
          another task
keep      it is good enough, but not certainly better than the champion, or a class got much worse
promote   it is certainly better, or there is no champion
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpipe.data.index import Hashes, are_in, samples_seen
from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import ParameterError
from ddpipe.evaluate.champion import NotComparable, champion_of, logits_of_champion
from ddpipe.evaluate.measure import unproven
from ddpipe.evaluate.resampling import CONFIDENCE, gain_interval, mcnemar
from ddpipe.evaluate.spec import GateSpec
from ddpipe.model.evaluation import Evaluation, load_evaluation
from ddpipe.model.history import NamedModel, Promotion
from ddpipe.model.metrics import DECIDING, METRICS, Answers
from ddpipe.model.package import seen_by
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray
from ddpipe.model.verdict import FAIL, FEWEST, KEEP, PROMOTE, ClassPair, Comparison, Verdict, publish
from ddpipe.parameters import AUTO
from ddpipe.storage import Store, open_store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The champion's side of a comparison: its answers and where they come from, or what the trouble is."""

    version: str = ""
    answers: Answers | None = None
    source: str = ""
    trouble: str = ""
    seen: Hashes | None = None


def gate(
    training_uri: str, manifest_uri: str, evaluation_uri: str, output_uri: str, spec: GateSpec
) -> Verdict:
    """Decide whether a model replaces the champion, and publish the verdict. Nothing is promoted here."""
    spec = spec.validated()
    manifest, evaluation = load_manifest(manifest_uri), load_evaluation(evaluation_uri)
    if spec.gate_metric == AUTO:
        spec = replace(spec, gate_metric=evaluation.metrics.headline)
    _check(spec, manifest, evaluation, manifest_uri)
    task, split = TASKS[manifest.task], evaluation.subject.split
    samples = open_split((manifest, store_of(manifest_uri)), split)
    logits, labels = evaluation.calibrated()
    own = Answers.of(task, logits, labels, evaluation.metrics.thresholds)
    promotion = NamedModel(store_of(manifest_uri), spec.gate_model).history().champion
    rival = (
        _rival(spec, promotion, (manifest, store_of(manifest_uri)), split, labels) if promotion else Rival()
    )
    seen = {"the new model": samples_seen(training_uri)}
    if rival.answers:
        seen[f"the champion {rival.version}"] = rival.seen
    unseen = _unseen(samples, seen.values())
    own, theirs = own.of_samples(unseen), rival.answers and rival.answers.of_samples(unseen)
    comparison, trouble = None, rival.trouble
    if not unseen.any():
        trouble = trouble or "there is no image that neither model was trained on: add new test images"
    elif theirs:
        groups = None if samples.groups is None else samples.groups[unseen]
        comparison = compare(own, theirs, manifest.classes, spec, groups)
    verdict = decide(
        spec,
        metric=spec.gate_metric,
        value=METRICS[spec.gate_metric].of(own) if unseen.any() else math.nan,
        champion=rival.version,
        comparison=comparison,
        trouble=trouble,
    )
    if verdict.promoted and (doubt := next(unproven(evaluation.metrics), "")):
        verdict = replace(verdict, reason=f"{verdict.reason}; but {doubt}")
        _log.warning("%s", doubt)
    unknown = [name for name, hashes in seen.items() if hashes is None]
    verdict = replace(
        verdict,
        excluded=int((~unseen).sum()),
        unknown=f"{' and '.join(unknown)} do not say what they were trained on" if unknown else "",
        source=rival.source,
    )
    publish(open_store(output_uri), verdict)
    _log.info("%s: %s", verdict.decision, verdict.reason)
    return verdict


def _rival(
    spec: GateSpec, promotion: Promotion, data: tuple[DatasetManifest, Store], split: str, labels: IntArray
) -> Rival:
    """The champion's answers to the split, or why there are none."""
    manifest, store = data
    task = TASKS[manifest.task]
    try:
        champion = champion_of(NamedModel(store, spec.gate_model), promotion, manifest)
        signature = champion.signature
        samples = open_split(data, split, shape=signature.shape)
        logits, source = logits_of_champion(champion, manifest, samples, split)
    except NotComparable as problem:
        return Rival(version=promotion.version, trouble=str(problem))
    thresholds = [None] * len(signature.classes) if task.exclusive else signature.thresholds
    return Rival(
        version=promotion.version,
        answers=Answers.of(task, logits, labels, thresholds),
        source=source,
        seen=seen_by(champion.folder),
    )


def _check(spec: GateSpec, manifest: DatasetManifest, evaluation: Evaluation, manifest_uri: str) -> None:
    task, wrong = TASKS[manifest.task], []
    if not spec.gate_model:
        wrong.append("no model is named: give its name as parameter gate_model")
    if evaluation.subject.dataset_id != manifest.dataset_id:
        wrong.append(f"the evaluation used dataset version {evaluation.subject.dataset_id}")
    if spec.gate_metric not in task.scores:
        known = ", ".join(name for name in task.scores if name in DECIDING)
        wrong.append(f"a {task.name} dataset has no {spec.gate_metric}; it has {known}")
    if wrong:
        raise ParameterError(
            what=GateSpec.what,
            which=manifest_uri,
            seen="; ".join(wrong),
            do="Correct the parameters of the gate, or evaluate on this dataset version first.",
        )


def _unseen(samples: SplitReader, seen: Iterable[Hashes | None]) -> BoolArray:
    """Which samples no model was trained on, shape (samples,)."""
    unseen: BoolArray = np.ones(len(samples), bool)
    for hashes in seen:
        if hashes is not None:
            unseen &= ~are_in(samples.sample_ids.column, hashes)
    return unseen


def compare(
    candidate: Answers,
    champion: Answers,
    classes: Sequence[str],
    spec: GateSpec,
    groups: IntArray | None = None,
) -> Comparison:
    """Two models on the same images; `groups` have shape (samples,)."""
    metric = spec.gate_metric
    low, high = gain_interval(candidate, champion, metric, groups)
    right, was_right = candidate.right, champion.right
    support = candidate.truth.sum(axis=0).tolist()
    pairs = zip(classes, support, _by_class(candidate), _by_class(champion), strict=True)
    return Comparison(
        candidate=METRICS[metric].of(candidate),
        champion=METRICS[metric].of(champion),
        low=low,
        high=high,
        confidence=CONFIDENCE,
        p_value=mcnemar(right, was_right) if groups is None else None,
        both_right=int((right & was_right).sum()),
        only_candidate=int((right & ~was_right).sum()),
        only_champion=int((was_right & ~right).sum()),
        both_wrong=int((~right & ~was_right).sum()),
        classes=tuple(
            ClassPair(name=name, support=count, candidate=now, champion=before)
            for name, count, now, before in pairs
        ),
    )


def _by_class(answers: Answers) -> tuple[float | None, ...]:
    """What each class is judged by: recall of an exclusive class, AUC of a label; None where undefined."""
    if not answers.task.exclusive:
        return answers.aucs
    hits: FloatArray = (answers.truth & answers.decisions).sum(axis=0)
    support: FloatArray = answers.truth.sum(axis=0)
    return tuple(float(hit / count) if count else None for hit, count in zip(hits, support, strict=True))


def decide(
    spec: GateSpec,
    *,
    metric: str,
    value: float,
    champion: str,
    comparison: Comparison | None,
    trouble: str = "",
) -> Verdict:
    """The verdict, and why in one sentence."""
    is_known = math.isfinite(value)
    if trouble and not value < spec.gate_minimum:  # NaN is not less: the trouble says why
        decision, reason = FAIL, trouble
    elif not value >= spec.gate_minimum:  # also NaN
        seen = f"{value:.4f}" if is_known else "undefined on these images"
        decision, reason = FAIL, f"{metric} is {seen}, but at least {spec.gate_minimum:g} is required"
    elif comparison is None:
        decision, reason = PROMOTE, f"there is no champion yet, and {metric} is {value:.4f}"
    else:
        decision, reason = _compared(spec, metric, champion, comparison)
    return Verdict(
        model=spec.gate_model,
        decision=decision,
        reason=reason,
        metric=metric,
        score=value if is_known else None,  # NaN is no JSON
        champion=champion,
        comparison=comparison,
    )


def _compared(spec: GateSpec, metric: str, champion: str, comparison: Comparison) -> tuple[str, str]:
    moved = _moved(metric, champion, comparison)
    if worse := _worse(spec, comparison):
        return KEEP, f"{worse}, although {moved}" if comparison.gain > 0 else f"{worse}, and {moved}"
    if comparison.low > spec.gate_gain and _disagree(spec, metric, comparison):
        return PROMOTE, moved
    return KEEP, f"{moved}: not certainly more than {spec.gate_gain:g}" if comparison.gain > 0 else moved


def _worse(spec: GateSpec, comparison: Comparison) -> str:
    """The class that lost most, if that is more than it may."""
    judged = [one for one in comparison.classes if one.support >= FEWEST]
    one = max(judged, key=lambda one: one.loss, default=None)
    if one and one.loss > spec.gate_drop:
        return f"class {one.name!r} fell from {one.champion:.4f} to {one.candidate:.4f}"
    return ""


def _disagree(spec: GateSpec, metric: str, comparison: Comparison) -> bool:
    """Accuracy of single images also has to pass McNemar's test, which is exact where few answers differ."""
    if not METRICS[metric].is_share or spec.gate_gain < 0 or comparison.p_value is None:
        return True
    return comparison.p_value <= 1 - CONFIDENCE


def _moved(metric: str, champion: str, comparison: Comparison) -> str:
    word = "rose" if comparison.gain > 0 else "fell" if comparison.gain < 0 else "stayed"
    interval = f"{100 * comparison.confidence:g} % interval"
    return (
        f"{metric} {word} from {comparison.champion:.4f} (champion {champion}) to "
        f"{comparison.candidate:.4f} on the same {comparison.samples:,} images, a change of "
        f"{comparison.gain:+.4f} with a {interval} from {comparison.low:+.4f} to {comparison.high:+.4f}"
    )
