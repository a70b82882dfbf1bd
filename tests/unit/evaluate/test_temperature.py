"""Calibration: a temperature fitted on validation, and where it reaches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import a_training, some_labels, some_logits
from samples import published, some_images
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax

from ddpipe.evaluate.evaluate import evaluate
from ddpipe.evaluate.measure import LOWEST, _least, fitted, measure
from ddpipe.export.export import export
from ddpipe.model.evaluation import Metrics
from ddpipe.model.tasks import TASKS
from ddpipe.storage import open_store


def _claims(factor: float, samples: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Logits that claim `factor` times as much as is true, and which classes the samples show."""
    random = np.random.default_rng(1)
    logits = random.normal(size=(samples, 4)) * 1.5
    shares = TASKS["multiclass"].probabilities(logits)
    labels = np.array([random.choice(4, p=row) for row in shares])
    return logits * factor, TASKS["multiclass"].truth(labels, 4)


@pytest.mark.parametrize("factor", [0.5, 1, 3])
def test_a_temperature_undoes_exaggeration(factor: float) -> None:
    logits, truth = _claims(factor)
    assert fitted(logits, truth, TASKS["multiclass"]) == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize(("samples", "margin", "least"), [(10, np.log(11), 1), (30, 2 * np.log(31), 2)])
def test_answers_that_are_all_right_keep_the_doubt_of_laplace(
    task: str, samples: int, margin: float, least: float
) -> None:
    truth = np.ones((samples, 2), bool) if task == "multilabel" else np.eye(2, dtype=bool)[[0] * samples]
    assert _least(margin * truth, truth, TASKS[task]) == pytest.approx(least, abs=1e-3)


def _least_loss(logits: np.ndarray, truth: np.ndarray, task: str) -> float:
    """The temperature with the least cross-entropy, where each truth has the doubt of Laplace."""
    sure = 1 - 1 / (len(logits) + 2)
    unsure = (1 - sure) / (logits.shape[1] - 1) if task == "multiclass" else 1 - sure
    targets = np.where(truth, sure, unsure)

    def loss(temperature: float) -> float:
        if task == "multiclass":
            return float(-(targets * np.log(softmax(logits / temperature, axis=1))).sum())
        said = expit(logits / temperature)
        return float(-(targets * np.log(said) + (1 - targets) * np.log(1 - said)).sum())

    return float(minimize_scalar(loss, bounds=(0.2, 10), method="bounded", options={"xatol": 1e-6}).x)


def _losses(logits: np.ndarray, truth: np.ndarray, task: str) -> np.ndarray:
    if task == "multiclass":
        return -np.log(softmax(logits, axis=1)[truth])
    return -np.log(np.where(truth, expit(logits), expit(-logits))).mean(axis=1)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_the_gain_that_may_be_chance_is_taken_off_a_temperature(task: str, together: int) -> None:
    """Its gain on each fifth of the samples, or groups, is that of the temperature of the others."""
    random, groups = np.random.default_rng(4), np.arange(90) // together
    logits = random.normal(size=(90, 3)) * 1.5
    truth = TASKS["multiclass"].truth((logits + random.gumbel(size=(90, 3))).argmax(axis=1), 3)
    if task == "multilabel":
        truth = random.random((90, 3)) < expit(logits)
    logits *= 1.7
    gains = np.zeros(90)
    for fifth in range(5):
        own = groups % 5 == fifth
        scaled = logits[own] / _least_loss(logits[~own], truth[~own], task)
        gains[own] = _losses(logits[own], truth[own], task) - _losses(scaled, truth[own], task)
    chance = np.sqrt(((gains - gains.mean()) ** 2).sum()) / 90 / gains.mean()
    assert 0.1 < chance < 0.9
    expected = _least_loss(logits, truth, task) ** (1 - chance**2)
    found = fitted(logits, truth, TASKS[task], groups if together > 1 else None)
    assert found == pytest.approx(expected, rel=3e-4)
    assert found == round(found, 4)


@pytest.mark.parametrize(("margin", "bound"), [(0.01, 0.2), (1000.0, 10)])
def test_a_temperature_is_at_least_a_fifth_and_at_most_ten(margin: float, bound: float) -> None:
    """Also where the answers are so sure that the probability of another class is 0."""
    truth = np.eye(2, dtype=bool)[[0] * 30]
    assert _least(margin * truth, truth, TASKS["multiclass"]) == pytest.approx(bound, rel=1e-3)


def test_labels_have_one_temperature_together() -> None:
    random = np.random.default_rng(2)
    logits = random.normal(size=(4000, 3))
    truth = random.random((4000, 3)) < TASKS["multilabel"].probabilities(logits)
    assert fitted(2 * logits, truth, TASKS["multilabel"]) == pytest.approx(2, rel=0.1)


def test_few_samples_leave_probabilities_as_they_are() -> None:
    logits, truth = _claims(3, samples=19)
    assert fitted(logits, truth, TASKS["multiclass"]) == 1
    assert fitted(logits[:0], truth[:0], TASKS["multiclass"]) == 1


@pytest.mark.parametrize(("samples", "is_fitted"), [(19, False), (20, True)])
def test_it_is_fitted_from_twenty_samples_on(samples: int, is_fitted: bool) -> None:
    truth = TASKS["multiclass"].truth(np.arange(samples) % 4, 4)
    assert (fitted(2.0 * truth, truth, TASKS["multiclass"]) != 1) is is_fitted


def test_one_class_leaves_nothing_to_fit() -> None:
    truth = TASKS["multiclass"].truth(np.zeros(100, np.int64), 1)
    assert fitted(2.0 * truth, truth, TASKS["multiclass"]) == 1


def test_a_calibrated_model_is_not_made_worse() -> None:
    """Nearly all answers right, and as sure as that: a small validation split is no reason to change it."""
    task, before, after = TASKS["multiclass"], 0.0, 0.0
    for seed in range(20):
        random = np.random.default_rng(seed)
        logits = 7.0 * task.truth(random.integers(0, 10, 2180), 10) + random.normal(size=(2180, 10))
        labels = np.array([random.choice(10, p=row) for row in task.probabilities(logits)])
        truth = task.truth(labels, 10)
        temperature = fitted(logits[:180], truth[:180], task)
        before += task.losses(task.probabilities(logits[180:]), truth[180:]).mean() / 20
        after += task.losses(task.probabilities(logits[180:] / temperature), truth[180:]).mean() / 20
    assert after <= before + 1e-3


def test_small_sets_with_smoothed_labels_become_sure() -> None:
    """All of 30 samples right, at a probability of 0.5 of 8 classes."""
    task = TASKS["multiclass"]
    truth = task.truth(np.arange(30) % 8, 8)
    temperature = fitted(2.0 * truth, truth, task)
    assert temperature < 0.6
    assert task.probabilities(2.0 * truth / temperature).max() > 0.9


def test_a_temperature_is_tried_on_other_groups() -> None:
    logits, truth = _claims(3, samples=400)
    assert fitted(logits, truth, TASKS["multiclass"], np.zeros(400, np.int64)) == 1, "there is no other group"
    assert fitted(logits, truth, TASKS["multiclass"], np.arange(400) // 2) == pytest.approx(3, rel=0.3)


def test_a_model_without_mistakes_is_not_certain() -> None:
    truth = TASKS["multiclass"].truth(np.arange(100) % 4, 4)
    temperature = fitted(4.0 * truth, truth, TASKS["multiclass"])
    probabilities = TASKS["multiclass"].probabilities(4.0 * truth / temperature)
    assert temperature > LOWEST
    assert probabilities.max() == pytest.approx(1 - 1 / 102, abs=1e-3)


def _evaluated(folder: Path) -> tuple[str, str]:
    """A dataset with enough validation samples, and a training on it."""
    splits = {
        name: [some_images(count, (8, 8, 1), seed=count)] for name, count in (("train", 6), ("test", 40))
    }
    dataset = published(
        open_store(str(folder / "store")), {**splits, "validation": [some_images(60, (8, 8, 1), seed=3)]}
    )
    return dataset, a_training(str(folder / "training"), dataset, bias=2.0)


def test_scores_without_temperature_are_kept(tmp_path: Path) -> None:
    dataset, training = _evaluated(tmp_path)
    evaluation = evaluate(training, dataset, str(tmp_path / "evaluation"))
    metrics, (logits, labels) = evaluation.metrics, evaluation.predictions()
    assert metrics.temperature != 1
    raw = measure(logits, labels, [one.name for one in metrics.classes])
    assert metrics.uncalibrated["log_loss"] == raw.scores["log_loss"].value
    assert metrics.before == raw.calibration
    assert metrics.scores["accuracy"] == raw.scores["accuracy"]
    scaled = measure(evaluation.calibrated()[0], labels, [one.name for one in metrics.classes])
    assert metrics.scores["log_loss"] == scaled.scores["log_loss"]


def test_a_package_carries_the_temperature(tmp_path: Path) -> None:
    dataset, training = _evaluated(tmp_path)
    metrics = evaluate(training, dataset, str(tmp_path / "evaluation")).metrics
    package = export(training, dataset, str(tmp_path / "evaluation"), str(tmp_path / "model"))
    assert package.signature.temperature == metrics.temperature != 1


def test_a_temperature_that_is_none_is_rejected() -> None:
    labels = some_labels(20, 2)[:, 0]
    values = json.loads(json.dumps(measure(some_logits(labels, 2), labels, ("a", "b")).to_dict()))
    assert Metrics.from_dict(values).temperature == 1
    with pytest.raises(ValueError, match="temperature is 0"):
        Metrics.from_dict({**values, "temperature": 0.0})
