"""How an evaluation computes: cuDNN's settings, batches bounded by pixels, views judged on validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import a_dataset, a_grouped_dataset, a_training, a_training_record
from torch import Tensor, nn

from ddpipe.data.reader import open_split
from ddpipe.evaluate.evaluate import evaluate, score, score_views, views_of
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model import PASSES, scoring
from ddpipe.model.checkpoint import RECORD
from ddpipe.model.scoring import batch_size_for, logits_by, with_views
from ddpipe.storage import open_store
from ddpipe.storage.sealed import to_json


class Watcher(nn.Module):
    """Two logits for each image; notes the size of each batch, and cuDNN's settings."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.settings: set[tuple[bool, bool, bool, bool]] = set()

    def forward(self, images: Tensor) -> Tensor:
        cudnn = torch.backends.cudnn
        self.sizes.append(len(images))
        self.settings.add((cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32))
        return images.float().mean((1, 2)).repeat(1, 2)


class Sided(Watcher):
    """Logits of the leftmost column and of the topmost row: a mirrored or moved image has others."""

    def forward(self, images: Tensor) -> Tensor:
        super().forward(images)
        pixels = images.float()
        return torch.stack([pixels[:, :, 0].mean((1, 2)), pixels[:, 0].mean((1, 2))], 1)


def test_cudnn_stays_on_and_deterministic_without_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cudnn.flags` switches off what it is not given: cuDNN itself."""
    for setting in ("benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, setting, True)
    watcher, dataset = Watcher(), a_dataset(str(tmp_path))
    score_views(watcher, "plain", {"test": open_split(dataset, "test")}, 2)
    assert watcher.settings == {(True, True, True, False)}
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("side", "most", "size"), [(32, 128, 128), (64, 512, 512), (224, 512, 41), (512, 512, 8), (4096, 512, 1)]
)
def test_batch_is_bounded_by_pixels(side: int, most: int, size: int) -> None:
    assert batch_size_for((side, side, 3), most) == size


def test_large_images_are_scored_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PIXELS", 10 * 8 * 8)
    watcher, dataset = Watcher(), a_dataset(str(tmp_path))
    found = score(logits_by(watcher), open_split(dataset, "test"), 2, 128)
    assert watcher.sizes == [10, 10, 10, 7]
    assert found.logits.shape == (37, 2)


def test_small_images_are_scored_in_batches_of_64(tmp_path: Path) -> None:
    watcher, dataset = Watcher(), a_dataset(str(tmp_path), test=70)
    found, plain = score_views(watcher, "plain", {"test": open_split(dataset, "test")}, 2)
    assert (watcher.sizes, found["test"].logits.shape, plain) == ([64, 6], (70, 2), None)


@pytest.mark.parametrize("views", ["plain", "flips"])
def test_a_split_without_images_has_logits_of_no_rows(tmp_path: Path, views: str) -> None:
    empty = open_split(a_dataset(str(tmp_path), test=0), "test")
    for found in score_views(Watcher(), views, {"test": empty}, 3):
        if found:
            assert (found["test"].logits.shape, found["test"].logits.dtype) == ((0, 3), np.float32)


def test_views_are_scored_on_validation_next_to_plain(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    spec = EvaluateSpec(test_time_views="flips")
    metrics = evaluate(training, dataset, str(tmp_path / "evaluation"), spec).metrics
    assert set(metrics.validation) == {"plain", "flips"}
    assert all(value in {0, 0.5, 1} for value in metrics.validation.values())  # of two images
    assert not evaluate(training, dataset, str(tmp_path / "plain")).metrics.validation


@pytest.mark.parametrize(
    ("choice", "views"),
    [
        ({"chosen": {"test_time_views": {"value": "flips"}}}, "flips"),
        ({"chosen": {"test_time_views": {"value": "sideways"}}}, "plain"),  # of another release
        ({"chosen": {}}, "plain"),
        (None, "plain"),
    ],
    ids=repr,
)
def test_the_views_are_those_that_the_training_chose(choice: object, views: str, tmp_path: Path) -> None:
    open_store(str(tmp_path)).write(RECORD, to_json({**a_training_record(), "choice": choice}))
    assert views_of(str(tmp_path), EvaluateSpec()) == views
    assert views_of(str(tmp_path), EvaluateSpec(test_time_views="flips-and-shifts")) == "flips-and-shifts"


@pytest.mark.parametrize("views", ["flips", "flips-and-shifts"])
def test_views_and_plain_images_are_scored_in_the_same_passes(tmp_path: Path, views: str) -> None:
    watcher, dataset = Sided(), a_dataset(str(tmp_path))
    splits = {"test": open_split(dataset, "test")}
    alone = score(logits_by(watcher), splits["test"], 2, 64)
    expected = score(logits_by(with_views(watcher, views)), splits["test"], 2, 64)
    watcher.sizes.clear()
    averaged, plain = score_views(watcher, views, splits, 2)
    assert len(watcher.sizes) == PASSES[views]
    assert plain is not None
    assert np.array_equal(plain["test"].logits, alone.logits)
    assert np.array_equal(averaged["test"].logits, expected.logits)
    assert not np.array_equal(averaged["test"].logits, alone.logits)
    assert averaged["test"].labels is splits["test"].labels


def test_groups_of_the_test_split_are_resampled(tmp_path: Path) -> None:
    """From the columns of the version to the intervals and the page that shows them."""
    dataset = a_grouped_dataset(str(tmp_path / "store"))
    training, evaluation = a_training(str(tmp_path / "training"), dataset), str(tmp_path / "evaluation")
    metrics = evaluate(training, dataset, evaluation).metrics
    assert (metrics.groups, metrics.temperature) == (10, 1)
    assert (metrics.uncalibrated, metrics.before) == ({}, ())
