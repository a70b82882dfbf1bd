"""Curves of the report."""

from __future__ import annotations

import re

import numpy as np
import pytest
from evaluation_runs import a_record, some_labels, some_logits
from sklearn import metrics as sklearn

from ddpipe.evaluate.figures import learning_curves, losses_by_epoch, precision_recall_curves, roc_curves
from ddpipe.evaluate.measure import ClassCurves, best_thresholds, class_curves, measure, precision_recall, roc
from ddpipe.evaluate.report import render
from ddpipe.model.evaluation import Curve
from ddpipe.model.tasks import TASKS


def test_report_has_precision_recall_curves() -> None:
    page = render(a_record(("bone", "lung"), task="multilabel", samples=60))
    assert "Precision-recall curves of each label" in page


def test_one_class_is_named_above_the_curves() -> None:
    curves = dict.fromkeys(("bone", "lung"), precision_recall(np.arange(9) % 2 == 0, np.linspace(0, 1, 9)))
    page = precision_recall_curves(curves, "lung")
    assert ("lung" in page, "bone" in page) == (True, False)
    assert "lung" not in precision_recall_curves(curves, None)


def _texts(figure: str) -> list[str]:
    return re.findall("<text[^>]*>([^<]+)</text>", figure)


def test_each_quantity_of_the_validation_images_has_a_figure() -> None:
    """The epochs are whole numbers, also around one; what was not measured is not drawn."""
    history = [
        {"epoch": epoch, "train_loss": 2 / epoch, "validation_loss": 1.5, "validation_mean_auc": epoch / 4}
        for epoch in (1, 2)
    ]
    figures = learning_curves(history)
    assert list(figures) == ["loss by epoch", "mean auc by epoch"]
    loss, auc = figures.values()
    assert (_texts(loss)[:3], _texts(loss)[-2:]) == (["1", "2", "epoch"], ["train", "validation"])
    assert (_texts(auc)[:3], _texts(auc)[-1]) == (["1", "2", "epoch"], "validation")
    assert ("var(--train" in loss, "var(--train" in auc, "var(--validation" in auc) == (True, False, True)
    assert [_texts(figure)[:4] for figure in learning_curves(history[:1]).values()] == [
        ["0", "1", "2", "epoch"]
    ] * 2


def test_losses_of_several_runs_differ_in_color_and_then_in_dashes() -> None:
    page = losses_by_epoch({str(number): [3.0, 2.0 + number] for number in range(5)})
    assert (_texts(page)[:3], _texts(page)[-5:]) == (["1", "2", "epoch"], ["0", "1", "2", "3", "4"])
    lines = re.findall(r"(dasharray: [^;]*; [^;]*; )?stroke: var\(--(train|validation|muted)", page)
    drawn = ["train", "validation", "muted", "train", "validation"]
    assert [color for _, color in lines] == [*drawn, *drawn]  # and in the legend
    assert [bool(dashes) for dashes, _ in lines[:5]] == [False, False, False, True, True]


@pytest.mark.parametrize(("classes", "gray"), [(12, 11), (13, 0)])
def test_of_more_than_twelve_classes_one_is_drawn(classes: int, gray: int) -> None:
    curve = roc(np.arange(9) % 2 == 0, np.linspace(0, 1, 9))
    page = roc_curves(curve, dict.fromkeys(map(str, range(classes)), curve), "3")
    assert page.count("stroke: var(--quiet") == gray
    assert _texts(page)[-2:] == ["3", "micro average"]


@pytest.mark.parametrize(("classes", "drawn"), [(12, True), (13, False)])
def test_page_says_whether_each_class_is_drawn(classes: int, drawn: bool) -> None:
    page = render(a_record([f"class {number}" for number in range(classes)]))
    assert ("ROC curves, each class against all others in gray" in page) is drawn


def test_a_name_in_a_legend_is_no_formula() -> None:
    curve = precision_recall(np.arange(9) % 2 == 0, np.linspace(0, 1, 9))
    page = precision_recall_curves({"_a$b$": curve}, "_a$b$")
    assert _texts(page)[-1] == "a$b$"


def test_precision_recall_is_that_of_scikit_learn() -> None:
    labels = np.arange(50) % 3 == 0
    probabilities = np.random.default_rng(0).random(50)
    found = precision_recall(labels, probabilities)
    precision, recall, thresholds = sklearn.precision_recall_curve(labels, probabilities)
    assert found.precision == tuple(precision[::-1])
    assert found.recall == tuple(recall[::-1])
    assert found.threshold == (1.0, *thresholds[::-1])


def test_roc_is_that_of_scikit_learn_from_a_threshold_of_one() -> None:
    labels = np.arange(50) % 3 == 0
    probabilities = np.random.default_rng(0).random(50)
    found = roc(labels, probabilities)
    false_positive, true_positive, thresholds = sklearn.roc_curve(labels, probabilities)
    assert found == Curve(tuple(false_positive), tuple(true_positive), (1.0, *thresholds[1:]))
    assert roc(labels | True, probabilities) == Curve((), (), ())


def test_each_class_has_the_curves_that_the_split_defines() -> None:
    """Every sample shows the first label, none the second, and some the third."""
    labels = some_labels(60, 3) & [0, 0, 1] | [1, 0, 0]
    logits, classes, task = some_logits(labels, 3), ("all", "none", "some"), TASKS["multilabel"]
    metrics = measure(logits, labels, classes, task="multilabel", thresholds=(0.5, None, 0.5))
    probabilities, truth = task.probabilities(logits), labels == 1
    assert class_curves(logits, labels, metrics) == {
        "all": ClassCurves(None, precision_recall(truth[:, 0], probabilities[:, 0])),
        "none": ClassCurves(None, None),
        "some": ClassCurves(
            roc(truth[:, 2], probabilities[:, 2]), precision_recall(truth[:, 2], probabilities[:, 2])
        ),
    }


def test_columns_of_other_numbers_of_classes_are_an_error() -> None:
    labels = some_labels(60, 3)
    logits = some_logits(labels, 3)
    metrics = measure(logits, labels, ("a", "b", "c"), task="multilabel", thresholds=(0.5,) * 3)
    with pytest.raises(ValueError, match="shorter"):
        class_curves(logits[:, :2], labels[:, :2], metrics)
    with pytest.raises(ValueError, match="shorter"):
        best_thresholds(logits, labels[:, :2] == 1)


def test_curves_are_thinned_to_a_hundred_points() -> None:
    labels = np.arange(5000) % 3 == 0
    found = precision_recall(labels, np.random.default_rng(0).random(5000))
    assert len(found.recall) == 100
    assert (found.recall[0], found.recall[-1]) == (0, 1)
