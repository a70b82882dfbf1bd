"""An evaluation of a training on its own test split."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import SHAPE, a_dataset, a_multilabel_dataset, a_training, some_labels, some_logits
from samples import a_manifest, published, some_images
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

from ddpipe.data.columns import Text, text
from ddpipe.data.index import hashed
from ddpipe.data.manifest import load_manifest
from ddpipe.data.npy import to_bytes
from ddpipe.data.reader import open_split
from ddpipe.errors import CheckpointError, DatasetError, Diverged, NotWritable
from ddpipe.evaluate.evaluate import BATCH_SIZE, Scored, _check_finite, assess, evaluate, measured
from ddpipe.evaluate.measure import fitted, measure, unproven
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import load_model
from ddpipe.model.evaluation import Subject
from ddpipe.model.scoring import logits_by, with_views
from ddpipe.model.tasks import TASKS
from ddpipe.storage import open_store

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
    began = time.monotonic()
    subject = evaluate(training, dataset, str(tmp_path / "evaluation")).subject
    assert subject == Subject(
        training=training,
        dataset=dataset,
        dataset_id=load_manifest(dataset).dataset_id,
        split="test",
        model="digits-cnn",
        epoch=3,
        device="cuda" if torch.cuda.is_available() else "cpu",
        processes=1,
        seconds=round(subject.seconds, 3),
        views="plain",
    )
    assert 0 <= subject.seconds <= time.monotonic() - began + 0.001


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dataset, output = a_dataset(str(tmp_path / "store")), str(tmp_path / "file" / "evaluation")
    with pytest.raises(NotWritable):
        evaluate("/nowhere", dataset, output)
    with pytest.raises(NotWritable):
        assess("/nowhere", dataset, output, "test")


def _seen(training: str, ids: Text) -> None:
    """Let a training record that it saw these."""
    open_store(training).write("trained_on.npy", to_bytes(hashed(ids)))


def test_a_model_that_was_trained_on_test_images_is_refused(tmp_path: Path) -> None:
    """Six of them have the names of training images, which may be others."""
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    _seen(training, open_split(dataset, "test").sample_ids.column)
    with pytest.raises(CheckpointError, match="was trained on 31 of 37 test images") as error:
        evaluate(training, dataset, str(tmp_path / "evaluation"))
    assert error.value.which == training


@pytest.mark.parametrize("last", [0.1, 0.3])
def test_a_reader_is_warned_of_all_that_is_known(tmp_path: Path, last: float) -> None:
    """Of two validation images, a score of 0.3 instead of 0.9 may be chance."""
    dataset = a_dataset(str(tmp_path / "store"))
    epochs = [{"epoch": epoch, "validation_accuracy": score} for epoch, score in ((1, 0.9), (2, last))]
    training = a_training(str(tmp_path / "training"), dataset, history=epochs)
    metrics = evaluate(training, dataset, str(tmp_path / "evaluation")).metrics
    rough = (
        "the scores are a rough guess: there are only 37 test images, so each is worth 2.7 points of accuracy"
    )
    worse = (
        "the evaluated epoch is much worse than the best: validation accuracy 0.1000 in epoch 2, "
        "0.9000 in epoch 1; train with model_selection best"
    )
    unknown = "the model does not say what it was trained on, so that an overlap cannot be found"
    expected = (*unproven(metrics), rough, *([worse] if last == 0.1 else []), unknown)
    assert len(expected) == (4 if last == 0.1 else 3)
    assert metrics.warnings == expected
    _seen(training, text(["elsewhere.png"]))
    again = evaluate(training, dataset, str(tmp_path / "again")).metrics
    assert again.warnings == expected[:-1]


def test_a_model_of_reduced_images_is_scored_on_those(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"), shape=(16, 16, 1))
    training = a_training(str(tmp_path / "training"), dataset, shape=SHAPE)
    evaluation = evaluate(training, dataset, str(tmp_path / "evaluation"))
    reduced = open_split(dataset, "test", shape=SHAPE).images(range(SAMPLES))
    np.testing.assert_allclose(
        evaluation.predictions()[0], logits_by(load_model(training)[0])(reduced), rtol=1e-4, atol=1e-6
    )


def test_views_are_judged_on_validation_images(tmp_path: Path) -> None:
    splits = {
        name: [some_images(count, SHAPE, seed=count)]
        for name, count in (("train", 6), ("validation", 60), ("test", 40))
    }
    dataset = published(open_store(str(tmp_path / "store")), splits)
    test, validation = (open_split(dataset, name) for name in ("test", "validation"))

    def center(classifier: nn.Module) -> None:
        """Else a network of random weights chooses the same class for all images."""
        last = list(classifier.parameters())[-1]
        last.sub_(torch.from_numpy(logits_by(classifier)(validation.images(range(60))).mean(axis=0)))

    training = a_training(str(tmp_path / "training"), dataset, adjust=center)
    metrics = evaluate(
        training, dataset, str(tmp_path / "evaluation"), EvaluateSpec(test_time_views="flips-and-shifts")
    ).metrics
    classifier, _ = load_model(training)
    both = {
        name: logits_by(with_views(classifier, name))(validation.images(range(60)))
        for name in ("plain", "flips-and-shifts")
    }
    shares = {name: float((one.argmax(1) == validation.labels).mean()) for name, one in both.items()}
    assert metrics.validation == shares
    assert shares["plain"] != shares["flips-and-shifts"]
    truth, task = TASKS["multiclass"].truth(validation.labels, 2), TASKS["multiclass"]
    plain = logits_by(classifier)(test.images(range(40))) / np.float32(fitted(both["plain"], truth, task))
    scores = measure(plain, test.labels, ("ball", "kité")).scores
    assert metrics.plain == pytest.approx({name: score.value for name, score in scores.items()}, rel=1e-4)


def test_a_temperature_is_that_of_other_groups_and_scores_without_it_are_kept() -> None:
    """All validation samples together leave no other group to try a temperature on."""
    labels = np.arange(60) % 2
    logits = some_logits(labels, 2, skill=1) * 8
    test = Scored(logits, labels, None)
    found = measured({"test": test, "validation": test}, a_manifest(), "test")
    raw = measure(logits, labels, ("ball", "kité"))
    assert found.temperature == fitted(logits, TASKS["multiclass"].truth(labels, 2), TASKS["multiclass"]) > 1
    assert found.before == raw.calibration != found.calibration
    assert found.uncalibrated == {name: raw.scores[name].value for name in ("log_loss", "calibration_error")}
    alike = measured(
        {"test": test, "validation": replace(test, groups=np.zeros(60, np.int64))}, a_manifest(), "test"
    )
    assert alike == raw


def test_labels_are_cut_where_validation_says_after_the_temperature() -> None:
    labels = some_labels(60, 2)
    logits = some_logits(labels, 2, skill=1) * 8
    test, manifest = Scored(logits, labels), a_manifest(task="multilabel")
    found = measured({"test": test, "validation": test}, manifest, "test")
    scaled = TASKS["multilabel"].probabilities(logits / np.float32(found.temperature))
    assert found.temperature > 1
    for label, threshold in enumerate(found.thresholds):
        assert threshold is not None
        levels = np.sort(scaled[:, label])
        middles = (levels[1:] + levels[:-1]) / 2
        assert np.abs(middles - threshold).min() < 1e-9, "it lies between two samples"


def test_samples_without_numbers_are_counted() -> None:
    logits = np.zeros((5, 2), np.float32)
    answers = {"validation": Scored(logits, np.zeros(5, np.int64))}
    _check_finite(answers, "runs/a")
    broken = logits.copy()
    broken[1], broken[3, 0] = np.nan, np.inf
    with pytest.raises(Diverged, match="NaN or infinity for 2 of 5 test samples") as error:
        _check_finite({**answers, "test": Scored(broken, np.zeros(5, np.int64))}, "runs/a")
    assert error.value.which == "runs/a"


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
    with pytest.raises(Diverged, match=f"NaN or infinity for {SAMPLES} of {SAMPLES}") as error:
        evaluate(training, dataset, str(tmp_path / "evaluation"))
    assert error.value.which == training
    assert not list((tmp_path / "evaluation").glob("*"))


def test_a_training_that_has_not_finished_is_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the training has not finished"):
        evaluate(str(tmp_path / "training"), a_dataset(str(tmp_path / "store")), str(tmp_path / "evaluation"))
