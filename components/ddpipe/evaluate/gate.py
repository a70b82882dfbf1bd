"""The gate's rules: what is known of two models -> promote, keep or fail, with a reason. Pure functions.

fail      the new model does not meet a requirement: a minimum; or it cannot be
compared, as the champion is gone or has another task
keep      it is good enough, but not certainly better than the champion, or a class or slice got much worse
promote   it is certainly better, or there is no champion
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ddpipe.evaluate.gate_spec import GateSpec
from ddpipe.evaluate.metrics import Answers
from ddpipe.evaluate.paired import by_class, gain, mcnemar, score
from ddpipe.model.slices import FEWEST
from ddpipe.model.tasks import BoolArray, IntArray, Task
from ddpipe.model.verdict import FAIL, KEEP, PROMOTE, ClassPair, Comparison, Verdict
from ddpipe.parameters import AUTO


def metric_of(spec: GateSpec, task: Task) -> str:
    """The score that decides; raises no error, as every task has an accuracy or an AUC."""
    return task.scores[0] if spec.gate_metric == AUTO else spec.gate_metric


def compare(
    candidate: Answers,
    champion: Answers,
    classes: Sequence[str],
    task: Task,
    spec: GateSpec,
    groups: IntArray | None = None,
    slices: Mapping[str, BoolArray] | None = None,
) -> Comparison:
    """Two models on the same images.

    Args:
        candidate: Answers of shape (samples, classes).
        champion: To the same samples, in the same order.
        classes: Names, in the order of the columns.
        task: Of the dataset.
        spec: The score that decides, and with which confidence.
        groups: Shape (samples,): equal numbers belong together; None: each sample is on its own.
        slices: By name, which samples each has, shape (samples,).
    """
    metric = metric_of(spec, task)
    found = gain(candidate, champion, metric, spec.gate_confidence, groups)
    right, was_right = candidate.right, champion.right
    pairs = zip(
        classes,
        candidate.truth.sum(axis=0).tolist(),
        by_class(candidate, exclusive=task.exclusive),
        by_class(champion, exclusive=task.exclusive),
        strict=True,
    )
    return Comparison(
        candidate=found.candidate,
        champion=found.champion,
        low=found.low,
        high=found.high,
        confidence=spec.gate_confidence,
        p_value=mcnemar(right, was_right) if groups is None else None,
        both_right=int((right & was_right).sum()),
        only_candidate=int((right & ~was_right).sum()),
        only_champion=int((was_right & ~right).sum()),
        both_wrong=int((~right & ~was_right).sum()),
        classes=tuple(
            ClassPair(name=name, support=support, candidate=now, champion=before)
            for name, support, now, before in pairs
        ),
        slices=tuple(
            ClassPair(
                name=name,
                support=int(mask.sum()),
                candidate=_score_of(candidate.of_samples(mask), metric),
                champion=_score_of(champion.of_samples(mask), metric),
            )
            for name, mask in (slices or {}).items()
        ),
    )


def _score_of(answers: Answers, metric: str) -> float | None:
    """A score of some samples; None where they define none."""
    value = score(answers, metric) if len(answers.truth) else math.nan
    return value if math.isfinite(value) else None


def first(answers: Answers, metric: str) -> float:
    """The score of a model that has no champion to be compared with; NaN if the split does not define it."""
    return score(answers, metric)


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
    decision, reason = _decided(spec, metric, value, champion, comparison, trouble)
    return Verdict(
        model=spec.gate_model,
        decision=decision,
        reason=reason,
        metric=metric,
        score=value if value == value else None,  # noqa: PLR0124 - NaN is no JSON
        champion=champion,
        comparison=comparison,
    )


def _decided(
    spec: GateSpec,
    metric: str,
    value: float,
    champion: str,
    comparison: Comparison | None,
    trouble: str,
) -> tuple[str, str]:
    if missed := list(_missed(spec, metric, value)):
        return FAIL, "; ".join(missed)
    if trouble:
        return FAIL, trouble
    if comparison is None:
        return PROMOTE, f"there is no champion yet, and {metric} is {value:.4f}"
    moved = _moved(metric, champion, comparison)
    if worse := _worse(spec, comparison):
        return KEEP, f"{worse}, although {moved}" if comparison.gain > 0 else f"{worse}, and {moved}"
    if comparison.low > spec.gate_gain and _disagree(spec, metric, comparison):
        return PROMOTE, moved
    return KEEP, f"{moved}: not certainly more than {spec.gate_gain:g}" if comparison.gain > 0 else moved


def _missed(spec: GateSpec, metric: str, value: float) -> Iterator[str]:
    """The requirements for any model that this one does not meet."""
    if not value >= spec.gate_minimum:  # also NaN
        seen = f"{value:.4f}" if value == value else "undefined on these images"  # noqa: PLR0124 - NaN
        yield f"{metric} is {seen}, but at least {spec.gate_minimum:g} is required"


def _worse(spec: GateSpec, comparison: Comparison) -> str:
    """The class, or else the slice, that lost most, if that is more than it may."""
    kinds = (
        ("class", comparison.classes, spec.gate_class_loss),
        ("slice", comparison.slices, spec.gate_slice_loss),
    )
    for kind, pairs, most in kinds:
        judged = [one for one in pairs if one.support >= FEWEST]
        one = max(judged, key=lambda one: one.loss, default=None)
        if one and one.loss > most:
            return f"{kind} {one.name!r} fell from {one.champion:.4f} to {one.candidate:.4f}"
    return ""


def _disagree(spec: GateSpec, metric: str, comparison: Comparison) -> bool:
    """Accuracy of single images also has to pass McNemar's test, which is exact where few answers differ."""
    if metric != "accuracy" or spec.gate_gain < 0 or comparison.p_value is None:
        return True
    return comparison.p_value <= 1 - spec.gate_confidence + 1e-12


def _moved(metric: str, champion: str, comparison: Comparison) -> str:
    word = "rose" if comparison.gain > 0 else "fell" if comparison.gain < 0 else "stayed"
    interval = f"{100 * comparison.confidence:g} % interval"
    return (
        f"{metric} {word} from {comparison.champion:.4f} (champion {champion}) to "
        f"{comparison.candidate:.4f} on the same {comparison.samples:,} images, a change of "
        f"{comparison.gain:+.4f} with a {interval} from {comparison.low:+.4f} to {comparison.high:+.4f}"
    )
