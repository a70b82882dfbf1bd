"""Whether an exported model computes the evaluated logits: far enough for every probability and decision.

onnxruntime adds up in float32 in another order than PyTorch, so logits differ in their last digits, by more
where a network adds up many or large terms. Normalization of large feature maps shows it most: digits-cnn on
images of 160 x 200 averages 128,000 values per group. There onnxruntime is off by 3e-5 of a deviation, ten
times as much as PyTorch, all features of the group move together, and the last layer adds all of them up:
0.0005 in logits after 15 steps of training (against float64; PyTorch: 0.00001). Two results agree where the
difference

- is what rounding alone explains (`tolerance`), or
- moves no probability by more than 0.001 and is small compared with the spread of the logits over the images.

Without its second half, the second condition would pass any network whose probabilities hardly depend on the
image. Away from ties, where the best probability
leads by 0.002, or a label's is 0.001 away from its threshold, decisions are then the same by arithmetic.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpipe.data.reader import SplitReader
from ddpipe.errors import ExportError, listed
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.scoring import answers_to
from ddpipe.model.session import Session
from ddpipe.model.tasks import TASKS, FloatArray, Task, Thresholds

BATCH_SIZES = (1, 2, 7, 64)  # in which the exported model is compared with PyTorch
PROBABILITY = 1e-3  # the largest change of a probability that nobody can see
SPREAD_SHARE = 0.1  # of the standard deviation of a logit over the images


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two computations of the same logits compare; NaN where one of the logits is not finite."""

    logits: float
    probabilities: float
    agrees: bool

    def __str__(self) -> str:
        """Both differences."""
        return f"{self.logits:.2g} in logits, {self.probabilities:.2g} in probabilities"


def agreement(
    found: FloatArray, expected: FloatArray, task: Task, *, rounding: float, spread: float
) -> Agreement:
    """Compare logits with the evaluated ones, shape (samples, classes), by `tolerance` and `spread_of`."""
    if not np.isfinite(found).all():
        return Agreement(float("nan"), float("nan"), agrees=False)
    differences = np.abs(found - expected)
    moved = np.abs(task.probabilities(found) - task.probabilities(expected))
    invisible = (moved <= PROBABILITY) & (differences <= SPREAD_SHARE * spread)
    return Agreement(
        float(differences.max()),
        float(moved.max()),
        agrees=bool(((differences <= rounding) | invisible).all()),
    )


def spread_of(logits: FloatArray) -> float:
    """The largest standard deviation of a logit over the images, shape (samples, classes)."""
    return float(logits.std(axis=0).max())


def same_decisions(found: FloatArray, expected: FloatArray, task: Task, thresholds: Thresholds) -> int:
    """For how many samples all decisions are the same, of two arrays of logits, shape (samples, classes)."""
    decided, evaluated = (
        task.decisions(task.probabilities(logits), thresholds) for logits in (found, expected)
    )
    return int((decided == evaluated).all(axis=1).sum())


SHARE = 1e-4  # of the largest logit: a hundred times what float32 usually rounds away
UNIT = 2.0**-24  # half the distance of 1 from the next float32: the most that one operation rounds away


def tolerance(model: nn.Module, images: Tensor, largest: float) -> float:
    """How far a logit may lie from the evaluated one, of which `largest` has the largest magnitude.

    A share of that, but not less than what rounding explains: adding up n terms in another order moves the
    sum by at most about sqrt(n) units of their magnitudes (Higham and Mary, SIAM J. Sci. Comput. 41, 2019),
    in every layer of width n. Some images, shape (n, H, W, C), show how large the terms are.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    roundings = sum(math.sqrt(layer.weight[0].numel()) for layer in layers)
    return max(SHARE * largest, UNIT * roundings * _largest_sum(model, layers, images))


def _largest_sum(model: nn.Module, layers: list[nn.Linear | nn.Conv2d], images: Tensor) -> float:
    """The largest sum of magnitudes that the last of these layers adds up to a logit."""
    calls: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], _output: Tensor) -> None:
        calls[:] = [(layer, inputs[0])]

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return max((_sum_of_magnitudes(layer, inputs) for layer, inputs in calls), default=0.0)


def _sum_of_magnitudes(layer: nn.Module, inputs: Tensor) -> float:
    positive = copy.deepcopy(layer)
    with torch.no_grad():
        for weights in positive.parameters():
            weights.abs_()
        return float(positive(inputs.abs()).max())


def check(session: Session, model: nn.Module, samples: SplitReader, evaluation: Evaluation) -> dict[str, Any]:
    """Prove that an ONNX model computes PyTorch's logits in batches of all sizes, and the evaluated ones."""
    logits, _ = evaluation.predictions()
    temperature = np.float32(evaluation.metrics.temperature)
    task, thresholds = TASKS[evaluation.metrics.task], evaluation.metrics.thresholds
    answers = answers_to(samples, session, max(BATCH_SIZES))
    first = torch.from_numpy(samples.images(range(min(max(BATCH_SIZES), len(samples)))))
    allowed = tolerance(model, first, float(np.abs(logits).max()))
    compare = partial(agreement, task=task, rounding=allowed, spread=spread_of(logits))
    found = {"the evaluated logits": compare(answers, logits)}
    for size in BATCH_SIZES:
        images = first[:size]
        with torch.inference_mode():
            trained = model(images).numpy()
        found[f"PyTorch's logits of {len(images)} images"] = compare(session(images.numpy()), trained)
    if problems := [f"{one} away from {other}" for other, one in found.items() if not one.agrees]:
        raise ExportError(
            what="the exported model does not compute what the trained one does",
            which=evaluation.subject.training,
            seen=f"{listed(problems)}\nwhere {allowed:.2g} in logits is within rounding, and a change of "
            f"{PROBABILITY:g} in probabilities is not visible",
            do="Evaluate again, then export: training may have continued since. If that does not help, "
            "use model.safetensors of the training's checkpoint: torch.onnx fails on this network.",
        )
    return {
        "samples": len(logits),
        "batch_sizes": list(BATCH_SIZES),
        "largest_difference": max(one.logits for one in found.values()),
        "largest_probability_difference": max(one.probabilities for one in found.values()),
        "tolerance": allowed,
        "same_decisions": same_decisions(answers / temperature, logits / temperature, task, thresholds),
    }
