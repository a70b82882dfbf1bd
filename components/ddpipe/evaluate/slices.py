"""How good a model is on each slice of a split, with intervals, and as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np

from ddpipe.evaluate.metrics import Answers, interval_of
from ddpipe.evaluate.paired import score
from ddpipe.model.slices import SliceScore, Slicing, worst_first
from ddpipe.model.tasks import BoolArray, IntArray, Task


def slice_scores(
    slicing: Slicing, answers: Answers, task: Task, groups: IntArray | None = None
) -> tuple[SliceScore, ...]:
    """How good a model is on each slice, in the order of `Slicing.each`.

    An average over classes is over those that the slice defines, and is compared with the whole split's over
    the same classes: a site without a rare finding is not better for that.

    Args:
        slicing: Of the split.
        answers: To all samples of the split.
        task: Of the dataset.
        groups: Shape (samples,): samples with equal numbers belong together; None: each is on its own.
    """
    metric = task.scores[0]

    def scored(column: str, value: str, mask: BoolArray) -> SliceScore:
        known = _known_classes(answers.of_samples(mask), task)
        some = answers if known.all() or metric == "accuracy" else answers.of_classes(known)
        own = some.of_samples(mask)
        found = score(own, metric) if mask.any() and known.any() else float("nan")
        exists = bool(np.isfinite(found))
        together = None if groups is None else groups[mask]
        low, high = interval_of(metric, own, together) if exists else (None, None)
        return SliceScore(
            column=column,
            value=value,
            samples=int(mask.sum()),
            score=found if exists else None,
            low=low,
            high=high,
            whole=score(some, metric) if exists else None,
            classes=len(known) if metric == "accuracy" else int(known.sum()),
        )

    return tuple(scored(*one) for one in slicing.each())


def _known_classes(answers: Answers, task: Task) -> BoolArray:
    """The classes by which a slice can be judged: that some of its samples show, and for labels not all."""
    counts = answers.truth.sum(axis=0)
    most = len(answers.truth) if task.exclusive else len(answers.truth) - 1
    known: BoolArray = (counts > 0) & (counts <= most)
    return known


def slices_csv(slices: Sequence[SliceScore]) -> bytes:
    """The scores as a table, the worst first."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("column", "value", "images", "score", "low", "high", "whole", "classes", "note"))
    for one in worst_first(slices):
        numbers = (one.score, one.low, one.high, one.whole)
        shown = ["" if number is None else f"{number:.6f}" for number in numbers]
        rows.writerow((one.column, one.value, one.samples, *shown, one.classes, "; ".join(notes(one))))
    return text.getvalue().encode()


def notes(one: SliceScore) -> Iterator[str]:
    """What a reader of a slice's score should know."""
    if one.score is None:
        yield "undefined: its images show too few classes"
    elif one.is_small:
        yield "few images"
    elif one.is_worse:
        yield "worse than the whole"
