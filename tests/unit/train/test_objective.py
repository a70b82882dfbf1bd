"""Losses by task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from samples import a_manifest
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ddpipe.data.reader import SplitReader
from ddpipe.train.objective import (
    BinaryCrossEntropy,
    CrossEntropy,
    class_weights,
    positive_weights,
    training_objective,
)
from ddpipe.train.recipe import Recipe

GENERATOR = np.random.default_rng(0)
LOGITS = torch.tensor(GENERATOR.normal(size=(40, 3)), dtype=torch.float32)
CLASSES = torch.tensor(GENERATOR.integers(0, 3, 40))
LABELS = torch.tensor(GENERATOR.integers(0, 2, (40, 3)), dtype=torch.float32)


def test_one_class_per_image_is_scored_by_cross_entropy_and_accuracy() -> None:
    objective = CrossEntropy()
    losses = objective.losses(LOGITS, CLASSES)
    assert losses.mean() == pytest.approx(cross_entropy(LOGITS, CLASSES).item())
    loss, right = objective.totals(losses, LOGITS, CLASSES).tolist()
    assert loss == pytest.approx(losses.sum().item())
    assert right == (LOGITS.argmax(1) == CLASSES).sum().item()


def test_several_labels_per_image_are_scored_by_binary_cross_entropy() -> None:
    losses = BinaryCrossEntropy().losses(LOGITS, LABELS)
    assert losses.shape == (40,)
    assert losses.mean() == pytest.approx(binary_cross_entropy_with_logits(LOGITS, LABELS).item())


def test_smoothing_never_makes_a_rare_class_the_best_answer() -> None:
    """Of an image of a common class, next to a class that weighs 50 times as much."""
    objective = CrossEntropy(torch.tensor([0.51, 25.5]), 0.2)
    right, wrong = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    label = torch.tensor([0])
    assert objective.losses(right, label) < objective.losses(wrong, label)
    unweighted = CrossEntropy(None, 0.2).losses(right, label)
    torch.testing.assert_close(objective.losses(right, label), 0.51 * unweighted)


def test_a_positive_weight_counts_a_present_label_that_many_times() -> None:
    weighted = BinaryCrossEntropy(torch.tensor([3.0, 1.0, 1.0])).losses(LOGITS, LABELS)
    plain = binary_cross_entropy_with_logits(LOGITS, LABELS, reduction="none")
    expected = (plain * (1 + 2 * LABELS * torch.tensor([1.0, 0.0, 0.0]))).mean(1)
    torch.testing.assert_close(weighted, expected)


def test_balanced_class_weights_are_scikit_learn_s() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(class_weights(labels, 3), expected)


def test_an_absent_class_weighs_nothing_and_does_not_divide_by_zero() -> None:
    weights = class_weights(np.array([0, 0, 0, 2]), 3)
    np.testing.assert_allclose(weights, [2 / 3, 0, 2])


def test_positive_weights_balance_each_label_that_can_be_balanced() -> None:
    labels = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_allclose(positive_weights(labels), [3, 1, 1])


def test_a_recipe_s_class_weights_and_smoothing_are_those_of_its_loss() -> None:
    recipe = Recipe(class_weights="balanced", label_smoothing=0.1)
    labels = np.array([0] * 7 + [1] * 2 + [2])
    split = cast("SplitReader", SimpleNamespace(labels=labels))
    objective = training_objective(recipe, a_manifest(classes=("a", "b", "c")), split, torch.device("cpu"))
    weights = torch.tensor(class_weights(labels, 3), dtype=torch.float32)
    torch.testing.assert_close(
        objective.losses(LOGITS, CLASSES), CrossEntropy(weights, 0.1).losses(LOGITS, CLASSES)
    )


def test_balanced_weights_of_several_labels_are_those_of_its_loss() -> None:
    split = cast("SplitReader", SimpleNamespace(labels=LABELS.numpy()))
    manifest = a_manifest(classes=("a", "b", "c"), task="multilabel")
    for balanced, weights in ((True, positive_weights(LABELS.numpy())), (False, np.ones(3))):
        recipe = Recipe(class_weights="balanced" if balanced else "none", label_smoothing=0.0)
        losses = training_objective(recipe, manifest, split, torch.device("cpu")).losses(LOGITS, LABELS)
        expected = BinaryCrossEntropy(torch.tensor(weights, dtype=torch.float32)).losses(LOGITS, LABELS)
        torch.testing.assert_close(losses, expected)
