"""Scores and their intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from evaluation_runs import some_logits
from scipy.special import softmax
from sklearn import metrics as sklearn

from ddpipe.evaluate.metrics import (
    FloatArray,
    bootstrap,
    calibration_error,
    log_loss,
    macro_auc,
    macro_f1,
    measure,
)
from ddpipe.model.evaluation import TITLES, Metrics

CLASSES = ("ant", "bee", "cat")
LABELS = np.arange(200) % 3
LOGITS = some_logits(LABELS, 3)
PROBABILITIES = softmax(LOGITS.astype(np.float64), axis=1)
# Rounded, so that scores of one class tie.
TIED = PROBABILITIES.round(1) + 1e-3
TIED /= TIED.sum(axis=1, keepdims=True)
ONCE = np.ones((len(LABELS), 1))


def _auc(probabilities: FloatArray, labels: FloatArray) -> float:
    return float(sklearn.roc_auc_score(labels, probabilities, multi_class="ovr"))


def test_values_are_those_of_the_library() -> None:
    headline = {name: score.value for name, score in measure(LOGITS, LABELS, CLASSES).scores.items()}
    predicted = LOGITS.argmax(axis=1)
    assert headline == pytest.approx(
        {
            "accuracy": sklearn.accuracy_score(LABELS, predicted),
            "macro_f1": sklearn.f1_score(LABELS, predicted, average="macro"),
            "log_loss": sklearn.log_loss(LABELS, PROBABILITIES),
            "macro_auc": _auc(PROBABILITIES, LABELS),
            "calibration_error": calibration_error(PROBABILITIES, LABELS),
        }
    )
    assert list(headline) == list(TITLES)


@pytest.mark.parametrize("probabilities", [PROBABILITIES, TIED], ids=["distinct", "tied"])
def test_what_is_resampled_is_the_same_score(probabilities: FloatArray) -> None:
    """Every sample drawn once: the statistic of the bootstrap is the library's value."""
    predicted = probabilities.argmax(axis=1)
    assert macro_f1(predicted, LABELS, 3)(ONCE) == pytest.approx(
        sklearn.f1_score(LABELS, predicted, average="macro")
    )
    assert log_loss(probabilities, LABELS)(ONCE) == pytest.approx(sklearn.log_loss(LABELS, probabilities))
    assert macro_auc(probabilities, LABELS)(ONCE) == pytest.approx(_auc(probabilities, LABELS))


def test_a_weight_is_as_many_copies_of_the_sample() -> None:
    weights = np.random.default_rng(1).integers(0, 4, len(LABELS))
    copies = np.repeat(np.arange(len(LABELS)), weights)
    for statistic in (macro_auc, log_loss):
        weighted = statistic(TIED, LABELS)(weights[:, None].astype(np.float64))
        copied = statistic(TIED[copies], LABELS[copies])(np.ones((len(copies), 1)))
        assert weighted == pytest.approx(copied)


def test_the_bootstrap_finds_the_known_interval_of_a_mean() -> None:
    values = np.random.default_rng(2).normal(size=2000)
    intervals = bootstrap(
        {"mean": lambda weights: values @ weights / weights.sum(axis=0)},
        samples=len(values),
        resamples=1000,
        seed=0,
    )
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert intervals["mean"] == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_intervals_hold_the_value_and_repeat_with_the_seed() -> None:
    scores = measure(LOGITS, LABELS, CLASSES, seed=3).scores
    for name in ("accuracy", "macro_f1", "log_loss", "macro_auc"):
        score = scores[name]
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
    assert measure(LOGITS, LABELS, CLASSES, seed=3).scores == scores
    assert measure(LOGITS, LABELS, CLASSES, seed=4).scores != scores


def test_a_faultless_model_is_not_called_certain() -> None:
    """Nothing wrong among 200 does not prove that nothing ever will be."""
    scores = measure(some_logits(LABELS, 3, skill=50), LABELS, CLASSES).scores
    accuracy, f1 = scores["accuracy"], scores["macro_f1"]
    assert (accuracy.value, accuracy.low) == (1.0, pytest.approx(0.981, abs=1e-3))
    assert (f1.value, f1.low, f1.high) == (1.0, None, None)


def test_what_a_split_can_not_tell_is_named() -> None:
    labels = LABELS % 2
    logits = some_logits(labels, 3)
    logits[:, 2] = -9
    metrics = measure(logits, labels, CLASSES)
    assert metrics.undefined == {
        "macro_f1": "no sample of 'cat' in this split",
        "macro_auc": "no sample of 'cat' in this split",
    }
    assert set(metrics.scores) == {"accuracy", "log_loss", "calibration_error"}
    cat = metrics.classes[2]
    assert (cat.precision, cat.recall, cat.f1, cat.support) == (None, None, None, 0)


def test_a_single_sample_is_scored() -> None:
    metrics = measure(LOGITS[:1], LABELS[:1], CLASSES)
    assert metrics.samples == 1
    assert "accuracy" in metrics.scores
    assert "macro_auc" in metrics.undefined


def test_the_confusion_matrix_has_the_truth_in_its_rows() -> None:
    logits = np.array([[0, 9, 0], [0, 9, 0], [0, 0, 9]], dtype=np.float32)
    metrics = measure(logits, np.array([0, 1, 2]), CLASSES)
    assert metrics.confusion_matrix == ((0, 1, 0), (0, 1, 0), (0, 0, 1))
    assert metrics.classes[1].precision == 0.5


def test_calibration_compares_confidence_with_accuracy() -> None:
    """Ten answers at 0.8, of which six are right."""
    probabilities = np.tile([0.8, 0.2], (10, 1))
    assert calibration_error(probabilities, np.array([0] * 6 + [1] * 4)) == pytest.approx(0.2)


def test_the_roc_curve_runs_from_corner_to_corner_in_few_finite_points() -> None:
    labels = np.arange(5000) % 3
    roc = measure(some_logits(labels, 3, skill=0.5), labels, CLASSES).roc
    points = np.array([roc.false_positive_rate, roc.true_positive_rate, roc.threshold])
    assert points.shape == (3, 100)
    assert np.isfinite(points).all()
    assert points[:2, 0].tolist() == [0, 0]
    assert points[:2, -1].tolist() == [1, 1]


def test_metrics_survive_json() -> None:
    metrics = measure(LOGITS, LABELS, CLASSES)
    assert Metrics.from_dict(json.loads(json.dumps(metrics.to_dict(), allow_nan=False))) == metrics
