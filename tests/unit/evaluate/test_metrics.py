"""Scores and their intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest
from evaluation_runs import some_labels, some_logits
from numpy.typing import NDArray
from scipy.special import expit
from sklearn import metrics as sklearn

from ddpipe.evaluate.measure import best_thresholds, measure
from ddpipe.evaluate.resampling import bootstrap
from ddpipe.model.evaluation import Metrics
from ddpipe.model.metrics import TITLES
from ddpipe.model.scores import (
    CalibrationBin,
    calibration,
    calibration_error,
    macro_average_precision,
    macro_f1,
    mean,
    resampled_macro_auc,
)
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray

CLASSES = ("ant", "bee", "cat")
LABELS = np.arange(200) % 3
LOGITS = some_logits(LABELS, 3)
MULTICLASS, MULTILABEL = TASKS["multiclass"], TASKS["multilabel"]
PROBABILITIES = MULTICLASS.probabilities(LOGITS)
TRUTH = MULTICLASS.truth(LABELS, 3)
# Rounded, so that scores of one class tie.
TIED = PROBABILITIES.round(1) + 1e-3
TIED /= TIED.sum(axis=1, keepdims=True)
ONCE = np.ones((len(LABELS), 1))

SEVERAL = some_labels(200, 3)
SEVERAL_LOGITS = some_logits(SEVERAL, 3)
THRESHOLDS = (0.3, 0.5, 0.7)


def _several(
    labels: IntArray = SEVERAL,
    logits: FloatArray = SEVERAL_LOGITS,
    thresholds: tuple[float | None, ...] = THRESHOLDS,
) -> Metrics:
    return measure(logits, labels, CLASSES, task="multilabel", thresholds=thresholds)


def _auc(probabilities: FloatArray, truth: BoolArray) -> float:
    return float(sklearn.roc_auc_score(truth, probabilities, average="macro"))


def _hold(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    """These values, among others."""
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_values_are_those_of_the_library() -> None:
    headline = {name: score.value for name, score in measure(LOGITS, LABELS, CLASSES).scores.items()}
    predicted = LOGITS.argmax(axis=1)
    _hold(
        headline,
        {
            "accuracy": sklearn.accuracy_score(LABELS, predicted),
            "macro_f1": sklearn.f1_score(LABELS, predicted, average="macro"),
            "log_loss": sklearn.log_loss(LABELS, PROBABILITIES),
            "macro_auc": sklearn.roc_auc_score(LABELS, PROBABILITIES, multi_class="ovr"),
            "calibration_error": calibration_error(
                calibration(PROBABILITIES.max(axis=1), predicted == LABELS)
            ),
        },
    )
    assert tuple(headline) == MULTICLASS.scores


def test_values_of_several_labels_are_those_of_the_library() -> None:
    headline = {name: score.value for name, score in _several().scores.items()}
    probabilities = expit(SEVERAL_LOGITS.astype(np.float64))
    said = probabilities >= THRESHOLDS
    _hold(
        headline,
        {
            "macro_auc": sklearn.roc_auc_score(SEVERAL, probabilities, average="macro"),
            "macro_average_precision": sklearn.average_precision_score(SEVERAL, probabilities),
            "macro_f1": sklearn.f1_score(SEVERAL, said, average="macro"),
            "log_loss": np.mean(
                [sklearn.log_loss(SEVERAL[:, label], probabilities[:, label]) for label in range(3)]
            ),
            "calibration_error": calibration_error(calibration(probabilities.ravel(), SEVERAL.ravel() == 1)),
        },
    )
    assert tuple(headline) == MULTILABEL.scores


def test_each_label_is_scored_as_the_library_does() -> None:
    probabilities = expit(SEVERAL_LOGITS.astype(np.float64))
    for label, scores in enumerate(_several().classes):
        truth, column = SEVERAL[:, label], probabilities[:, label]
        said = column >= THRESHOLDS[label]
        assert scores.auc == pytest.approx(sklearn.roc_auc_score(truth, column))
        assert scores.average_precision == pytest.approx(sklearn.average_precision_score(truth, column))
        assert scores.precision == pytest.approx(sklearn.precision_score(truth, said))
        assert scores.recall == pytest.approx(sklearn.recall_score(truth, said))
        assert scores.f1 == pytest.approx(sklearn.f1_score(truth, said))
        assert (scores.threshold, scores.support) == (THRESHOLDS[label], truth.sum())


def test_every_score_has_a_title() -> None:
    assert {name for task in TASKS.values() for name in task.scores} == set(TITLES)


@pytest.mark.parametrize("probabilities", [PROBABILITIES, TIED], ids=["distinct", "tied"])
def test_what_is_resampled_is_the_same_score(probabilities: FloatArray) -> None:
    """Every sample drawn once: the statistic of the bootstrap is the library's value."""
    said = MULTICLASS.decisions(probabilities, ())
    assert macro_f1(said, TRUTH)(ONCE) == pytest.approx(sklearn.f1_score(TRUTH, said, average="macro"))
    assert resampled_macro_auc(probabilities, TRUTH)(ONCE) == pytest.approx(_auc(probabilities, TRUTH))
    assert macro_average_precision(probabilities, TRUTH)(ONCE) == pytest.approx(
        sklearn.average_precision_score(TRUTH, probabilities)
    )


def test_weight_is_as_many_copies_of_the_sample() -> None:
    weights = np.random.default_rng(1).integers(0, 4, len(LABELS))
    copies = np.repeat(np.arange(len(LABELS)), weights)
    for statistic in (resampled_macro_auc, macro_average_precision):
        weighted = statistic(TIED, TRUTH)(weights[:, None].astype(np.float64))
        copied = statistic(TIED[copies], TRUTH[copies])(np.ones((len(copies), 1)))
        assert weighted == pytest.approx(copied)


def test_certain_mistake_has_the_finite_loss_of_the_library() -> None:
    probabilities = np.array([[1.0, 0.0], [0.5, 0.5]])
    labels = np.array([1, 0])
    losses = MULTICLASS.losses(probabilities, MULTICLASS.truth(labels, 2))
    assert losses.mean() == pytest.approx(sklearn.log_loss(labels, probabilities))
    one = MULTILABEL.losses(np.array([[1.0]]), np.array([[False]]))
    assert one.mean() == pytest.approx(sklearn.log_loss([0], [1.0], labels=[0, 1]))


def test_bootstrap_finds_the_known_interval_of_a_mean() -> None:
    values = np.random.default_rng(2).normal(size=2000)
    intervals = bootstrap({"mean": mean(values)}, groups=np.arange(len(values)), resamples=1000)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert intervals["mean"] == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_intervals_hold_the_value_and_repeat_with_the_seed() -> None:
    scores = measure(LOGITS, LABELS, CLASSES).scores
    for name in ("accuracy", "macro_f1", "log_loss", "macro_auc"):
        score = scores[name]
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
    assert measure(LOGITS, LABELS, CLASSES).scores == scores


def patients(
    draw: int, count: int = 60, images: int = 10
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Logits, labels and patients: what a model knows of a patient it knows of all of its images."""
    generator = np.random.default_rng(draw)
    patient = np.repeat(np.arange(count), images)
    labels = generator.integers(0, 2, len(patient))
    certainty = generator.normal(1, 1, count)[patient] + generator.normal(0, 0.3, len(patient))
    signs = 2 * labels - 1
    return np.stack([-signs * certainty, signs * certainty], 1).astype(np.float32), labels, patient * 7


@pytest.mark.slow
def test_intervals_of_grouped_images_contain_the_truth() -> None:
    """Resampled by images, they contained it in half of the draws."""
    many = measure(*patients(0, 20_000, 2)[:2], ("a", "b")).scores
    found = dict.fromkeys(("accuracy", "macro_f1", "log_loss", "macro_auc"), 0)
    by_image = dict(found)
    for draw in range(1, 61):
        logits, labels, patient = patients(draw)
        for counts, groups in ((found, patient), (by_image, None)):
            scores = measure(logits, labels, ("a", "b"), groups=groups).scores
            for name in counts:
                counts[name] += (scores[name].low or 0) <= many[name].value <= (scores[name].high or 0)
    assert min(found.values()) >= 52
    assert max(by_image.values()) <= 42


def test_groups_of_one_image_have_nearly_the_interval_of_images() -> None:
    plain = measure(LOGITS, LABELS, CLASSES).scores
    alone = measure(LOGITS, LABELS, CLASSES, groups=np.arange(len(LABELS))[::-1])
    assert alone.groups == len(LABELS)
    for name, score in plain.items():
        if score.low is not None:
            assert alone.scores[name].low == pytest.approx(score.low, abs=0.01)
            assert alone.scores[name].high == pytest.approx(score.high, abs=0.01)


def test_faultless_model_is_as_certain_as_it_has_groups() -> None:
    logits = some_logits(LABELS, 3, skill=50)
    tens = measure(logits, LABELS, CLASSES, groups=np.arange(len(LABELS)) // 10).scores["accuracy"]
    assert (tens.value, tens.low, tens.high) == (1.0, pytest.approx(0.8203, abs=0.0002), pytest.approx(1.0))
    one = measure(logits, LABELS, CLASSES, groups=np.zeros(len(LABELS), int)).scores["accuracy"]
    assert (one.low, one.high) == (None, None)


def test_faultless_model_is_not_called_certain() -> None:
    """Nothing wrong among 200 does not prove that nothing ever will be."""
    scores = measure(some_logits(LABELS, 3, skill=50), LABELS, CLASSES).scores
    accuracy, f1 = scores["accuracy"], scores["macro_f1"]
    assert (accuracy.value, accuracy.low) == (1.0, pytest.approx(0.981, abs=1e-3))
    assert (f1.value, f1.low, f1.high) == (1.0, None, None)


def test_score_that_a_split_does_not_define_is_named() -> None:
    labels = LABELS % 2
    logits = some_logits(labels, 3)
    logits[:, 2] = -9
    metrics = measure(logits, labels, CLASSES)
    reason = "no sample of 'cat' in this split"
    assert {"macro_f1": reason, "macro_auc": reason}.items() <= metrics.undefined.items()
    assert {"accuracy", "log_loss", "calibration_error"} <= set(metrics.scores) - set(metrics.undefined)
    cat = metrics.classes[2]
    assert (cat.precision, cat.recall, cat.f1, cat.support) == (None, None, None, 0)


def test_single_sample_is_scored() -> None:
    metrics = measure(LOGITS[:1], LABELS[:1], CLASSES)
    assert metrics.samples == 1
    assert "accuracy" in metrics.scores
    assert "macro_auc" in metrics.undefined


def test_confusion_matrix_has_the_truth_in_its_rows() -> None:
    logits = np.array([[0, 9, 0], [0, 9, 0], [0, 0, 9]], dtype=np.float32)
    metrics = measure(logits, np.array([0, 1, 2]), CLASSES)
    assert metrics.confusion_matrix == ((0, 1, 0), (0, 1, 0), (0, 0, 1))
    assert metrics.classes[1].precision == 0.5


def test_each_class_is_scored_by_its_hits_among_those_that_show_it_and_those_said_to() -> None:
    """Of two ants one is found, of three bees two, and one bee is taken for a cat; there is no dog."""
    said, labels = np.array([0, 1, 1, 1, 2, 2]), np.array([0, 0, 1, 1, 1, 2])
    metrics = measure(4.0 * (said[:, None] == np.arange(4)), labels, (*CLASSES, "dog"))
    decided = [(one.name, one.support, one.precision, one.recall, one.f1) for one in metrics.classes]
    assert decided == [
        ("ant", 2, 1.0, 0.5, pytest.approx(2 / 3)),
        ("bee", 3, pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3)),
        ("cat", 1, 0.5, 1.0, pytest.approx(2 / 3)),
        ("dog", 0, None, None, None),
    ]
    assert metrics.confusion_matrix == ((1, 1, 0, 0), (0, 2, 1, 0), (0, 0, 1, 0), (0, 0, 0, 0))
    assert (metrics.task, metrics.samples, metrics.groups) == ("multiclass", 6, 0)
    assert metrics.thresholds == (None,) * 4


def test_calibration_compares_confidence_with_frequency() -> None:
    """Ten claims of 0.8, of which six came true."""
    bins = calibration(np.full(10, 0.8), np.arange(10) < 6)
    assert bins == (CalibrationBin(pytest.approx(0.8), 0.6, 10),)
    assert calibration_error(bins) == pytest.approx(0.2)


def test_certainty_shares_the_last_bin_with_what_is_nearly_certain() -> None:
    assert calibration(np.array([1.0, 0.95, 0.0]), np.array([False, True, False])) == (
        CalibrationBin(0.0, 0.0, 1),
        CalibrationBin(pytest.approx(0.975), 0.5, 2),
    )


def test_threshold_has_the_best_f1_and_lies_between_samples() -> None:
    probabilities = np.array([[0.1], [0.2], [0.6], [0.9]])
    truth = np.array([[False], [False], [True], [True]])
    assert best_thresholds(probabilities, truth) == (pytest.approx(0.4),)
    assert best_thresholds(probabilities, ~truth) == (pytest.approx(0.05),)
    assert best_thresholds(probabilities, truth & False) == (None,)


def test_threshold_of_a_model_that_misses_more_than_it_finds_has_the_best_f1() -> None:
    """The second and the last of ten: one of two is found at 0.85, with one false alarm, and F1 is 0.5."""
    probabilities = np.linspace(1, 0.1, 10)[:, None]
    truth = np.isin(np.arange(10), (1, 9))[:, None]
    assert best_thresholds(probabilities, truth) == (pytest.approx(0.85),)


def test_no_other_threshold_has_a_better_f1() -> None:
    probabilities = expit(SEVERAL_LOGITS.astype(np.float64))
    found = best_thresholds(probabilities, SEVERAL == 1)
    for label, threshold in enumerate(found):
        truth, column = SEVERAL[:, label], probabilities[:, label]
        every = [sklearn.f1_score(truth, column >= level) for level in column]
        assert sklearn.f1_score(truth, column >= threshold) == pytest.approx(max(every))


def test_label_that_nothing_shows_is_named() -> None:
    labels = SEVERAL.copy()
    labels[:, 2] = 0
    metrics = _several(labels)
    assert metrics.undefined == {
        "macro_auc": "no sample of 'cat' in this split",
        "macro_average_precision": "no sample of 'cat' in this split",
    }
    cat = metrics.classes[2]
    assert (cat.auc, cat.average_precision, cat.recall, cat.support) == (None, None, None, 0)
    assert metrics.classes[0].auc is not None


def test_label_that_everything_shows_is_named() -> None:
    labels = SEVERAL.copy()
    labels[:, 0] = 1
    assert _several(labels).undefined == {"macro_auc": "no sample without 'ant' in this split"}


def test_label_without_a_threshold_is_not_decided() -> None:
    metrics = _several(thresholds=(0.5, None, 0.5))
    assert metrics.undefined == {
        "macro_f1": "no sample of 'bee' in the validation split to choose a threshold by"
    }
    bee = metrics.classes[1]
    assert (bee.precision, bee.recall, bee.f1, bee.threshold) == (None, None, None, None)
    assert bee.auc is not None


def test_split_that_shows_nothing_at_all_is_still_scored() -> None:
    metrics = _several(np.zeros((4, 3), np.int64), SEVERAL_LOGITS[:4])
    assert {"log_loss", "calibration_error"} <= set(metrics.scores)
    assert metrics.roc.threshold == ()


def test_roc_curve_has_few_finite_points_from_corner_to_corner() -> None:
    labels = np.arange(5000) % 3
    roc = measure(some_logits(labels, 3, skill=0.5), labels, CLASSES).roc
    points = np.array([roc.false_positive_rate, roc.true_positive_rate, roc.threshold])
    assert points.shape == (3, 100)
    assert np.isfinite(points).all()
    assert points[:2, 0].tolist() == [0, 0]
    assert points[:2, -1].tolist() == [1, 1]


@pytest.mark.parametrize("metrics", [measure(LOGITS, LABELS, CLASSES), _several()], ids=list(TASKS))
def test_metrics_survive_json(metrics: Metrics) -> None:
    values = json.loads(json.dumps(metrics.to_dict(), allow_nan=False))
    assert Metrics.from_dict(values) == metrics
    assert Metrics.from_dict({**values, "slices": [{"column": "site"}]}) == metrics  # of before
