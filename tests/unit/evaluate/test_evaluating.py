"""An evaluation of a training on its own test split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import a_dataset, a_multilabel_dataset, a_training
from sklearn.metrics import average_precision_score, roc_auc_score

from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.errors import CheckpointError, DatasetError, Diverged
from ddpipe.evaluate.evaluate import BATCH_SIZE, evaluate
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import load_model

SAMPLES = 37


def test_areas_are_those_of_the_library_over_the_whole_split(tmp_path: Path) -> None:
    """Of batches of several sizes, the last of five samples."""
    dataset = a_multilabel_dataset(str(tmp_path / "store"), test=4 * BATCH_SIZE + 5)
    training = a_training(str(tmp_path / "training"), dataset)
    evaluation = evaluate(training, dataset, str(tmp_path / "evaluation"))
    logits, labels = evaluation.predictions()
    headline = evaluation.headline()
    assert headline["macro_auc"] == pytest.approx(roc_auc_score(labels, logits, average="macro"), abs=1e-12)
    assert headline["macro_average_precision"] == pytest.approx(average_precision_score(labels, logits))
    for label, scores in enumerate(evaluation.metrics.classes):
        assert scores.auc == pytest.approx(roc_auc_score(labels[:, label], logits[:, label]), abs=1e-12)


def test_an_evaluation_says_what_was_evaluated(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"), test=SAMPLES)
    training = a_training(str(tmp_path / "training"), dataset)
    subject = evaluate(training, dataset, str(tmp_path / "evaluation")).subject
    assert (subject.training, subject.dataset) == (training, dataset)
    assert subject.dataset_id == load_manifest(dataset).dataset_id
    assert (subject.split, subject.processes, subject.views) == ("test", 1, "plain")
    _, checkpoint = load_model(training)
    assert (subject.model, subject.epoch) == (checkpoint.network["name"], checkpoint.epoch)


def test_thresholds_come_from_the_validation_split(tmp_path: Path) -> None:
    """It has two images, of which the second shows the first label."""
    dataset = a_multilabel_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    metrics = evaluate(training, dataset, str(tmp_path / "evaluation")).metrics
    classifier, _ = load_model(training)
    with torch.inference_mode():
        images = torch.from_numpy(open_split(dataset, "validation").images([0, 1]))
        other, shows = classifier(images).double().sigmoid()[:, 0].tolist()
    expected = (shows + other) / 2 if shows > other else shows / 2
    assert metrics.thresholds == (pytest.approx(expected), None, None)
    assert metrics.undefined == {
        "macro_f1": "no sample of 'lung', 'tube' in the validation split to choose a threshold by"
    }


def test_flips_are_averaged_and_reported(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    plain = evaluate(training, dataset, str(tmp_path / "plain"))
    flipped = evaluate(training, dataset, str(tmp_path / "flipped"), EvaluateSpec(test_time_views="flips"))
    assert (plain.subject.views, plain.metrics.plain) == ("plain", {})
    assert flipped.subject.views == "flips"
    assert flipped.metrics.plain == plain.headline()
    classifier, _ = load_model(training)
    images = open_split(dataset, "test").images(range(SAMPLES))
    with torch.inference_mode():
        both = [classifier(torch.from_numpy(one.copy())).numpy() for one in (images, images[:, :, ::-1])]
    np.testing.assert_allclose(flipped.predictions()[0], np.mean(both, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 8, 37, 128])
def test_every_sample_is_scored_exactly_once_and_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr("ddpipe.evaluate.evaluate.BATCH_SIZE", batch_size)
    dataset = a_dataset(str(tmp_path / "store"), test=SAMPLES)
    training = a_training(str(tmp_path / "training"), dataset)
    evaluation = evaluate(training, dataset, str(tmp_path / "evaluation"))
    logits, labels = evaluation.predictions()
    samples, (classifier, _) = open_split(dataset, "test"), load_model(training)
    with torch.inference_mode():
        expected = classifier(torch.from_numpy(samples.images(range(SAMPLES)))).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(labels, samples.labels)
    assert evaluation.metrics.samples == SAMPLES
    assert sum(map(sum, evaluation.metrics.confusion_matrix)) == SAMPLES


def test_a_model_of_another_dataset_is_refused(tmp_path: Path) -> None:
    training = a_training(str(tmp_path / "training"), a_dataset(str(tmp_path / "store"), test=4))
    other = a_dataset(str(tmp_path / "store"), test=6)
    with pytest.raises(CheckpointError, match="it was trained on version"):
        evaluate(training, other, str(tmp_path / "evaluation"))
    assert not list((tmp_path / "evaluation").glob("*"))


def test_a_dataset_without_test_samples_is_refused(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"), test=0)
    training = a_training(str(tmp_path / "training"), dataset)
    with pytest.raises(DatasetError, match="its test split is empty"):
        evaluate(training, dataset, str(tmp_path / "evaluation"))


def test_a_model_without_numbers_is_not_scored(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset, bias=float("nan"))
    with pytest.raises(Diverged, match=f"NaN or infinity for {SAMPLES} of {SAMPLES}"):
        evaluate(training, dataset, str(tmp_path / "evaluation"))
    assert not list((tmp_path / "evaluation").glob("*"))


def test_a_training_that_has_not_finished_is_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the training has not finished"):
        evaluate(str(tmp_path / "training"), a_dataset(str(tmp_path / "store")), str(tmp_path / "evaluation"))
