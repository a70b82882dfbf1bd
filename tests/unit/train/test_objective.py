"""Losses by task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from samples import a_manifest
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ddpipe.data.reader import SplitReader
from ddpipe.errors import ParameterError
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


def test_what_is_added_up_is_named() -> None:
    losses = torch.tensor([0.5, 1.0, 2.0])
    logits = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    exact, shares = torch.tensor([2, 1, 1]), torch.tensor([[0.4, 0.0, 0.6], [0.1, 0.2, 0.7], [0.3, 0.7, 0.0]])
    for labels in (exact, shares):
        found = dict(zip(CrossEntropy.sums, CrossEntropy().totals(losses, logits, labels), strict=True))
        assert found == {"loss": 3.5, "accuracy": 2}
    totals = BinaryCrossEntropy().totals(losses, logits, shares)
    assert dict(zip(BinaryCrossEntropy.sums, totals, strict=True)) == {"loss": 3.5}
    assert totals.dtype is torch.float64


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 4.0])])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_shares_of_classes_have_their_shares_of_the_losses(
    weights: torch.Tensor | None, smoothing: float
) -> None:
    """As augmentations mix images."""
    objective, shares = CrossEntropy(weights, smoothing), torch.tensor([0.1, 0.2, 0.7])
    pure = torch.stack([objective.losses(LOGITS, torch.full((40,), label)) for label in range(3)], 1)
    torch.testing.assert_close(objective.losses(LOGITS, shares.expand(40, 3)), pure @ shares)


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
    labels = np.array([[1, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 0]])
    np.testing.assert_allclose(positive_weights(labels), [3, 1, 1, 1 / 3])


def test_a_recipe_s_class_weights_and_smoothing_are_those_of_its_loss() -> None:
    recipe = Recipe(class_weights="balanced", label_smoothing=0.1)
    labels = np.array([0] * 7 + [1] * 2 + [2])
    split = cast("SplitReader", SimpleNamespace(labels=labels))
    objective = training_objective(recipe, a_manifest(classes=("a", "b", "c")), split, torch.device("cpu"))
    weights = torch.tensor(class_weights(labels, 3), dtype=torch.float32)
    torch.testing.assert_close(
        objective.losses(LOGITS, CLASSES), CrossEntropy(weights, 0.1).losses(LOGITS, CLASSES)
    )


@pytest.mark.parametrize(("task", "labels"), [("multiclass", np.array([0, 1])), ("multilabel", np.eye(2))])
def test_weights_of_classes_are_where_the_logits_are(task: str, labels: NDArray[np.int64]) -> None:
    split, device = cast("SplitReader", SimpleNamespace(labels=labels)), torch.device("meta")
    recipe = Recipe(class_weights="balanced", label_smoothing=0.0)
    objective = training_objective(recipe, a_manifest(task=task), split, device)
    weights = getattr(objective, "weights" if task == "multiclass" else "positive_weights")
    assert (weights.device, weights.dtype) == (device, torch.float32)


def test_several_labels_are_not_smoothed() -> None:
    split = cast("SplitReader", SimpleNamespace(labels=LABELS.numpy()))
    with pytest.raises(ParameterError, match=r"label_smoothing is 0\.1"):
        training_objective(
            Recipe(label_smoothing=0.1), a_manifest(task="multilabel"), split, torch.device("cpu")
        )


def test_balanced_weights_of_several_labels_are_those_of_its_loss() -> None:
    split = cast("SplitReader", SimpleNamespace(labels=LABELS.numpy()))
    manifest = a_manifest(classes=("a", "b", "c"), task="multilabel")
    for balanced, weights in ((True, positive_weights(LABELS.numpy())), (False, np.ones(3))):
        recipe = Recipe(class_weights="balanced" if balanced else "none", label_smoothing=0.0)
        losses = training_objective(recipe, manifest, split, torch.device("cpu")).losses(LOGITS, LABELS)
        expected = BinaryCrossEntropy(torch.tensor(weights, dtype=torch.float32)).losses(LOGITS, LABELS)
        torch.testing.assert_close(losses, expected)
