"""One evaluation by one process and by several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import a_dataset, a_training

from ddpipe.data.reader import open_split
from ddpipe.errors import CheckpointError, DatasetError, Diverged
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.launch.local import run_local
from ddpipe.model.checkpoint import load_model
from ddpipe.model.evaluation import load_evaluation

SAMPLES = 37


@pytest.mark.parametrize(
    "batch_size",
    [pytest.param(8, id="five batches, the last of five samples"), pytest.param(64, id="fewer than ranks")],
)
def test_two_processes_see_what_one_sees_bit_for_bit(tmp_path: Path, batch_size: int) -> None:
    dataset = a_dataset(str(tmp_path / "store"), test=SAMPLES)
    training, output = a_training(str(tmp_path / "training"), dataset), str(tmp_path / "two")
    one = evaluate(training, dataset, str(tmp_path / "one"), batch_size=batch_size)
    arguments = ["--training", training, "--dataset", dataset, "--output", output]
    run_local("ddpipe.evaluate", [*arguments, "--batch-size", str(batch_size)], processes=2)
    two = load_evaluation(output)
    assert two.subject.processes == 2
    assert one.metrics == two.metrics
    for first, second in zip(one.predictions(), two.predictions(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("batch_size", [1, 8, 37, 128])
def test_every_sample_is_scored_exactly_once_and_in_its_place(tmp_path: Path, batch_size: int) -> None:
    dataset = a_dataset(str(tmp_path / "store"), test=SAMPLES)
    training = a_training(str(tmp_path / "training"), dataset)
    evaluation = evaluate(training, dataset, str(tmp_path / "evaluation"), batch_size=batch_size)
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
    with pytest.raises(Diverged, match=f"no numbers for {SAMPLES} of {SAMPLES}"):
        evaluate(training, dataset, str(tmp_path / "evaluation"))
    assert not list((tmp_path / "evaluation").glob("*"))


def test_a_training_that_has_not_finished_is_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the training has not finished"):
        evaluate(str(tmp_path / "training"), a_dataset(str(tmp_path / "store")), str(tmp_path / "evaluation"))
