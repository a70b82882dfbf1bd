"""What a reader of the scores is warned of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluation_runs import a_record

from ddpipe.evaluate.evaluate import rough, warnings_about
from ddpipe.evaluate.measure import measure, unproven
from ddpipe.evaluate.report import render
from ddpipe.model.evaluation import Estimate, Metrics


def history(*scores: float) -> list[dict[str, float]]:
    return [{"epoch": epoch, "validation_accuracy": score} for epoch, score in enumerate(scores, start=1)]


def test_views_that_make_the_model_worse_are_named() -> None:
    """Left-or-right images: a mirrored view is another class."""
    (text,) = warnings_about({"plain": 0.98, "flips": 0.286}, [], "accuracy", 1000)
    assert "flips make the model worse: validation accuracy 0.2860 instead of 0.9800" in text


@pytest.mark.parametrize("views", [{}, {"plain": 0.9, "flips": 0.9}, {"plain": 0.9, "flips": 0.95}], ids=repr)
def test_views_that_are_no_worse_are_not_mentioned(views: dict[str, float]) -> None:
    assert not list(warnings_about(views, [], "accuracy", 1000))


def test_last_epoch_that_is_much_worse_than_the_best_is_named() -> None:
    (text,) = warnings_about({}, history(0.5, 0.9, 0.7), "accuracy", 1000)
    assert "0.7000 in epoch 3, 0.9000 in epoch 2" in text
    assert "model_selection best" in text


@pytest.mark.parametrize("scores", [(), (0.5,), (0.5, 0.9, 0.86), (0.1, 0.2, 0.9)], ids=repr)
def test_last_epoch_that_is_about_the_best_is_not_mentioned(scores: tuple[float, ...]) -> None:
    assert not list(warnings_about({}, history(*scores), "accuracy", 1000))


def test_a_difference_that_few_images_make_by_chance_is_no_warning() -> None:
    """With six images, one of them is a sixth."""
    views, epochs = {"plain": 1.0, "flips": 5 / 6}, history(5 / 6, 4 / 6)
    assert not list(warnings_about(views, epochs, "accuracy", 6))
    assert len(list(warnings_about(views, epochs, "accuracy", 600))) == 2


@pytest.mark.parametrize(("worse", "warned"), [(0.5, False), (0.499, True)])
def test_a_difference_of_exactly_what_chance_makes_is_no_warning(worse: float, warned: bool) -> None:
    """One over the square root of four images."""
    assert bool(list(warnings_about({"plain": 1.0, "flips": worse}, [], "accuracy", 4))) is warned
    assert bool(list(warnings_about({}, history(1.0, worse), "accuracy", 4))) is warned


@pytest.mark.parametrize(("last", "warned"), [(0.0, False), (-0.001, True)])
def test_a_drop_of_exactly_five_points_is_no_warning(last: float, warned: bool) -> None:
    assert bool(list(warnings_about({}, history(0.05, last), "accuracy", 10**6))) is warned


def test_no_validation_image_makes_any_difference_chance() -> None:
    assert not list(warnings_about({"plain": 1.0, "flips": 0.0}, history(1.0, 0.0), "accuracy", 0))


def test_history_of_any_content_is_read() -> None:
    """A checkpoint is not trusted: what is not a score is skipped."""
    odd = [
        {"validation_accuracy": "high"},
        {"epoch": 2},
        {"validation_accuracy": 0.9},
        {"validation_accuracy": 0.1},
    ]
    (text,) = warnings_about({}, odd, "accuracy", 1000)
    assert "in epoch None" in text


@pytest.mark.parametrize(("samples", "warned"), [(12, True), (99, True), (100, False)])
def test_scores_on_few_test_images_are_called_a_guess(samples: int, warned: bool) -> None:
    assert ["rough guess" in text for text in rough(samples, "accuracy")] == [True] * warned


@pytest.mark.parametrize(("metric", "named"), [("accuracy", True), ("macro_auc", False)])
def test_points_of_accuracy_are_named_where_it_is_a_score(metric: str, named: bool) -> None:
    (text,) = rough(12, metric, "validation")
    assert "12 validation images" in text
    assert ("8.3 points of accuracy" in text) is named


def test_warnings_are_part_of_the_report() -> None:
    record = a_record()
    metrics = replace(record.evaluation.metrics, warnings=("flips make <it> worse",))
    page = render(replace(record, evaluation=replace(record.evaluation, metrics=metrics)))
    assert "flips make &lt;it&gt; worse" in page


def _parts(defects: int, found: int, false_alarms: int, images: int = 400) -> Metrics:
    """What is measured of a model that finds so many defects among good parts."""
    labels = np.arange(images) < defects
    said = (np.arange(images) < found) | (np.arange(images) >= images - false_alarms)
    logits = np.where(np.stack([~said, said], axis=1), 2.0, -2.0).astype(np.float32)
    return measure(logits, labels.astype(np.int64), ("ok", "defect"))


def test_a_model_that_is_not_clearly_better_than_a_constant_answer_is_named() -> None:
    """Accuracy 0.886 looks good, and "ok" for every part has 0.971."""
    metrics = _parts(defects=12, found=1, false_alarms=35)
    assert metrics.scores["accuracy"].value == pytest.approx(0.885)
    assert metrics.baseline["accuracy"] == pytest.approx(0.97)
    assert (metrics.headline, metrics.commonest.name) == ("balanced_accuracy", "ok")
    (text,) = unproven(metrics)
    assert "balanced accuracy 0.4966 is not clearly better than 0.5000" in text


def test_with_even_classes_accuracy_counts_and_is_compared_with_the_commonest_class() -> None:
    metrics = _parts(defects=170, found=5, false_alarms=0)
    assert metrics.headline == "accuracy"
    (text,) = unproven(metrics)
    assert "which always answering 'ok' gives" in text


TOO_FEW = "add images, as those of this split are too few to show it"
NOT_BETTER = "add images of the classes that are confused, or train longer"


@pytest.mark.parametrize(
    ("value", "low", "advice"),
    [
        (0.6, 0.501, ""),
        (0.6, 0.5, TOO_FEW),
        (0.5, 0.4, NOT_BETTER),
        (0.4, 0.3, NOT_BETTER),
        (0.501, None, ""),
        (0.5, None, NOT_BETTER),
    ],
)
@pytest.mark.parametrize(
    ("metric", "constant"), [("accuracy", "always answering 'ok'"), ("macro_auc", "a constant answer")]
)
def test_the_low_end_of_a_score_has_to_be_above_that_of_a_constant_answer(
    metric: str, constant: str, value: float, low: float | None, advice: str
) -> None:
    metrics = replace(_parts(200, 200, 0), scores={metric: Estimate(value, low, 0.9)})
    title = metric.replace("macro_auc", "macro AUC")
    warning = f"{title} {value:.4f} is not clearly better than 0.5000, which {constant} gives: {advice}"
    assert list(unproven(metrics)) == [warning] * bool(advice)


@pytest.mark.parametrize("scores", [{}, {"macro_f1": Estimate(0.1)}], ids=["none", "no constant answer"])
def test_a_score_without_an_equal_of_a_constant_answer_is_not_warned_of(scores: dict[str, Estimate]) -> None:
    assert not list(unproven(replace(_parts(200, 200, 0), scores=scores)))


def test_a_model_that_is_clearly_better_is_not_warned_of() -> None:
    assert not list(unproven(_parts(defects=12, found=11, false_alarms=4)))
    assert not list(unproven(_parts(defects=170, found=160, false_alarms=9)))
