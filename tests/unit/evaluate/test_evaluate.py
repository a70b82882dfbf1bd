"""How an evaluation computes: cuDNN's settings, batches bounded by pixels, views judged on validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluation_runs import a_dataset, a_training
from samples import a_split, written
from torch import Tensor, nn

from ddpipe.data.index import open_index
from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.distributed import process_group
from ddpipe.evaluate.evaluate import evaluate, score
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model import scoring
from ddpipe.model.scoring import batch_size_for
from ddpipe.storage import open_store


class Watcher(nn.Module):
    """Two logits for each image; notes the size of each batch, and cuDNN's settings."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.settings: set[tuple[bool, bool, bool]] = set()

    def forward(self, images: Tensor) -> Tensor:
        cudnn = torch.backends.cudnn
        self.sizes.append(len(images))
        self.settings.add((cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32))
        return images.float().mean((1, 2)).repeat(1, 2)


def test_cudnn_stays_on_and_deterministic_without_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cudnn.flags` switches off what it is not given: cuDNN itself."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    watcher, dataset = Watcher(), a_dataset(str(tmp_path))
    with process_group() as world:
        score(watcher, {"test": open_split(dataset, "test")}, world, 2, 128)
    assert watcher.settings == {(True, True, False)}


@pytest.mark.parametrize(
    ("side", "most", "size"), [(32, 128, 128), (64, 512, 512), (224, 512, 41), (512, 512, 8), (4096, 512, 1)]
)
def test_batch_is_bounded_by_pixels(side: int, most: int, size: int) -> None:
    assert batch_size_for((side, side, 3), most) == size


def test_large_images_are_scored_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PIXELS", 10 * 8 * 8)
    watcher, dataset = Watcher(), a_dataset(str(tmp_path))
    with process_group() as world:
        found = score(watcher, {"test": open_split(dataset, "test")}, world, 2, 128)
    assert watcher.sizes == [10, 10, 10, 7]
    assert found["test"].logits.shape == (37, 2)


def test_views_are_scored_on_validation_next_to_plain(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    spec = EvaluateSpec(test_time_views="flips")
    metrics = evaluate(training, dataset, str(tmp_path / "evaluation"), spec).metrics
    assert set(metrics.validation) == {"plain", "flips"}
    assert all(value in {0, 0.5, 1} for value in metrics.validation.values())  # of two images
    assert not evaluate(training, dataset, str(tmp_path / "plain")).metrics.validation


def test_groups_of_the_test_split_are_resampled(tmp_path: Path) -> None:
    """From the columns of the version to the intervals and the page that shows them."""
    store = open_store(str(tmp_path / "store"))
    manifest = load_manifest(a_dataset(store.uri))
    count = manifest.splits["test"].count
    index = open_index(manifest, "test", store)
    grouped = a_split(
        count,
        shards=manifest.splits["test"].shards,
        ids=list(index.sample_ids),
        labels=index.labels,
        groups=[f"patient {number // 4}" for number in range(count)],
        store=store,
    )
    dataset = written(store, replace(manifest, splits={**manifest.splits, "test": grouped}))
    training, evaluation = a_training(str(tmp_path / "training"), dataset), str(tmp_path / "evaluation")
    assert evaluate(training, dataset, evaluation).metrics.groups == 10
