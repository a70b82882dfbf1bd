"""What an evaluation says beyond its scores: slices and curves, in the metrics and as files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddpipe.evaluate import curves
from ddpipe.evaluate.metrics import Answers
from ddpipe.evaluate.slices import slice_scores, slices_csv
from ddpipe.model.evaluation import Evaluation, Metrics, Subject, publish
from ddpipe.model.slices import FILE, Slicing
from ddpipe.model.tasks import TASKS, FloatArray, IntArray
from ddpipe.storage import Store
from ddpipe.storage.sealed import to_json

TABLE = "slices.csv"


def publish_in_detail(
    store: Store,
    subject: Subject,
    metrics: Metrics,
    logits: FloatArray,
    labels: IntArray,
    slicing: Slicing | None = None,
    groups: IntArray | None = None,
) -> Evaluation:
    """Publish an evaluation with its curves and, if there are any, its slices.

    Args:
        store: The folder; an older evaluation in it is replaced.
        subject: What was evaluated.
        metrics: The result for the whole split.
        logits: float32, shape (samples, classes), not yet divided by the temperature.
        labels: As the split has them.
        slicing: Which slice each sample is in.
        groups: Shape (samples,): samples with equal numbers belong together; None: each is on its own.
    """
    task, scaled = TASKS[metrics.task], logits / np.float32(metrics.temperature)
    files = {curves.FILE: to_json(curves.to_plain(curves.class_curves(scaled, labels, metrics)))}
    if slicing:
        answers = Answers.of(task, scaled, labels, metrics.thresholds)
        metrics = replace(metrics, slices=slice_scores(slicing, answers, task, groups))
        files |= {FILE: slicing.to_bytes(), TABLE: slices_csv(metrics.slices)}
    return publish(store, subject, metrics, logits, labels, files)
