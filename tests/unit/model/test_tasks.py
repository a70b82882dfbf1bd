"""How a model is judged after an epoch, by task, and its logits on a whole split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from samples import published, some_images
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

from ddpipe.data.manifest import TASK_NAMES
from ddpipe.data.reader import open_split
from ddpipe.distributed import World
from ddpipe.model.scores import average, class_aucs
from ddpipe.model.scoring import logits_of
from ddpipe.model.tasks import TASKS
from ddpipe.storage import open_store

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(40, 3)).astype(np.float32)
CLASSES = GENERATOR.integers(0, 3, 40)
LABELS = GENERATOR.integers(0, 2, (40, 3))


def test_multiclass_validation_is_loss_and_accuracy() -> None:
    found = TASKS["multiclass"].validation(LOGITS, CLASSES)
    expected = log_loss(CLASSES, torch.tensor(LOGITS).double().softmax(1).numpy())
    assert found == {"loss": pytest.approx(expected), "accuracy": (LOGITS.argmax(1) == CLASSES).mean()}


def test_multilabel_validation_is_loss_and_macro_auc() -> None:
    found = TASKS["multilabel"].validation(LOGITS, LABELS)
    loss = nn.functional.binary_cross_entropy_with_logits(torch.tensor(LOGITS), torch.tensor(LABELS).float())
    assert found == {
        "loss": pytest.approx(loss.item()),
        "macro_auc": pytest.approx(roc_auc_score(LABELS, LOGITS, average="macro"), abs=1e-12),
    }


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_have_no_loss_and_no_score(task: str, broken: float) -> None:
    logits = LOGITS.copy()
    logits[3, 1] = broken
    kind = TASKS[task]
    found = kind.validation(logits, CLASSES if kind.exclusive else LABELS)
    assert np.isnan(found["loss"])
    assert found[kind.scores[0]] == 0


def test_macro_auc_averages_the_labels_that_have_an_auc() -> None:
    truth = LABELS == 1
    truth[:, 1] = True
    aucs = class_aucs(LOGITS, truth)
    assert aucs[1] is None
    expected = [roc_auc_score(truth[:, one], LOGITS[:, one]) for one in (0, 2)]
    assert average(aucs) == pytest.approx(np.mean(expected))


class Counting(nn.Module):
    """Logits that distinguish images; remembers the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        return images.float().mean((1, 2, 3))[:, None].repeat(1, 2)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_rank_computes_as_many_batches_of_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """5 batches of 13 images: a sharded model would hang on ranks that computed fewer than others."""
    images = some_images(13, (8, 8, 1))
    splits = {
        "train": [some_images(2, (8, 8, 1))],
        "validation": [some_images(2, (8, 8, 1))],
        "test": [images],
    }
    split = open_split(published(open_store(str(tmp_path)), splits), "test")
    shares, models = [], [Counting() for _ in range(ranks)]
    monkeypatch.setattr(World, "gather", lambda _world, rows: shares.append(rows) or rows)
    for rank, model in enumerate(models):
        logits_of(model, split, World(rank, ranks, torch.device("cpu")), classes=2, batch_size=3)
    assert {len(model.sizes) for model in models} == {-(-5 // ranks)}
    merged = np.empty((5, 3, 2), np.float32)
    for rank, rows in enumerate(shares):
        merged[rank::ranks] = rows
    expected = Counting()(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(merged.reshape(-1, 2)[:13], expected)


def test_every_task_of_a_manifest_has_an_implementation() -> None:
    assert tuple(TASKS) == TASK_NAMES
