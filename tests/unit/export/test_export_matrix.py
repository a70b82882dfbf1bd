"""Export is green for every network, size, precision and task: rounding never rejects a model."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
import torch
from evaluation_runs import a_dataset, a_multilabel_dataset, a_training
from network_families import FAMILIES, side_of
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.export.agreement import PROBABILITY
from ddpipe.export.export import export
from ddpipe.model import ARCHITECTURES
from ddpipe.model.classifier import Classifier

SIDES = (8, 28, 64, 224)
STEPS = 2
SAMPLES = 5
WAYS = [
    (1, "fp32", "multiclass"),
    (3, "bf16", "multiclass"),
    (1, "bf16", "multilabel"),
    (3, "fp32", "multilabel"),
]
"""Channels, precision and task: each pair of their values occurs."""

FAST = [("digits-cnn", (8, 8), WAYS[2])]
"""What is tried at every change."""

TILES = [("digits-cnn", (160, 200), WAYS[1])]
"""Tiles of photographs, which were rejected for a difference of 0.0043 in logits."""

WHOLE = "DDPIPE_WHOLE_MATRIX" in os.environ
_OFTEN = ("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mnasnet0_5", "mobilenet_v2")
USUAL = {
    **dict.fromkeys(ARCHITECTURES, SIDES),
    **dict.fromkeys(_OFTEN, (64,)),
    "fast-cnn": SIDES[:3],  # it is between the small and the large one, which are tried at 224
    "googlenet": (224,),
}
"""Networks and sizes that are always tried, in one way; the whole matrix takes half an hour."""

ALL = TILES + [
    (name, (side, side), WAYS[way])
    for (row, name), (column, side), way in product(enumerate(FAMILIES), enumerate(SIDES), range(len(WAYS)))
    if side >= side_of(name)
    and (name, (side, side), WAYS[way]) not in FAST
    and (
        WHOLE
        or (name == "lenet" and side == 28)
        or (side in USUAL.get(name, ()) and way == (row + column) % len(WAYS))
    )
]


def named(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    ("name", "size", "way"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL)],
    ids=named,
)
def test_export_is_green(
    tmp_path: Path,
    name: str,
    size: tuple[int, int],
    way: tuple[int, str, str],
) -> None:
    channels, precision, task = way
    make = a_dataset if task == "multiclass" else a_multilabel_dataset
    dataset = make(str(tmp_path / "store"), test=SAMPLES, shape=(*size, channels))
    training = a_training(
        str(tmp_path / "training"), dataset, name=name, adjust=lambda one: trained(one, dataset, precision)
    )
    evaluation = str(tmp_path / "evaluation")
    evaluate(training, dataset, evaluation)
    checks = export(training, dataset, evaluation, str(tmp_path / "model")).lineage["checks"]
    assert checks["samples"] == SAMPLES
    assert (
        checks["largest_probability_difference"] <= PROBABILITY
        or checks["largest_difference"] <= checks["tolerance"]
    )


def trained(classifier: Classifier, dataset: str, precision: str) -> None:
    """Take a few steps on the training split in the given precision."""
    split, task = open_split(dataset, "train"), load_manifest(dataset).task
    images, labels = torch.from_numpy(split.images(range(len(split)))), torch.from_numpy(split.labels.copy())
    classifier.initialize(images)
    classifier.train()
    weights = [one for one in classifier.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    with torch.enable_grad():
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                logits = classifier(images)
            loss = (
                cross_entropy(logits.float(), labels)
                if task == "multiclass"
                else binary_cross_entropy_with_logits(logits.float(), labels.float())
            )
            torch.autograd.backward(loss)
            optimizer.step()
