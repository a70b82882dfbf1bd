"""A working resolution: training, evaluation, the exported model and predictions see the same images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from recipes import plain

import ddpipe
from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.export.export import export
from ddpipe.model.package import load_package
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.train.train import train

SIDE = 28


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Smooth pictures of two colors, 120 by 112 pixels; the folder and the manifest."""
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for name, color in (("blue", (40, 60, 200)), ("red", (200, 60, 40))):
        (folder / "raw" / name).mkdir(parents=True)
        for number in range(20):
            coarse = random.integers(-30, 30, (7, 8, 3)) + np.array(color)
            picture = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((120, 112))
            picture.save(folder / "raw" / name / f"{number}.png")
    spec = PrepareSpec(source="folder", source_path=str(folder / "raw"), store=str(folder / "store"))
    return folder, prepare(spec).manifest_uri


def test_predictions_at_a_working_resolution_are_those_evaluated(photographs: tuple[Path, str]) -> None:
    folder, dataset = photographs
    assert load_manifest(dataset).shape == (112, 112, 3)
    training, evaluation, package = (str(folder / name) for name in ("training", "evaluation", "model"))
    train(dataset, training, plain(resolution=SIDE, epochs=2, batch_size=8, learning_rate=0.01))
    found = evaluate(training, dataset, evaluation)
    export(training, dataset, evaluation, package)
    assert load_package(package).signature.shape == (SIDE, SIDE, 3)
    logits, _ = found.predictions()
    samples = open_split(dataset, "test").sample_ids
    answers = ddpipe.load_model(package).predict([str(folder / "raw" / name) for name in samples])
    seen = np.array([list(answer.probabilities.values()) for answer in answers])
    np.testing.assert_allclose(seen, TASKS["multiclass"].probabilities(logits), atol=1e-4)


@pytest.mark.parametrize("kept", [True, False])
def test_reduced_images_are_the_same_whether_kept_or_not(
    photographs: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    _, dataset = photographs
    whole = open_split(dataset, "train").images([3, 1, 3])
    monkeypatch.setattr("ddpipe.data.shards.KEPT", 2**30 if kept else 0)
    reader = open_split(dataset, "train", shape=(SIDE, SIDE, 3))
    first, second = reader.images([3, 1, 3]), reader.images([3, 1, 3])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[0], first[2])
    averaged = whole.reshape(3, SIDE, 4, SIDE, 4, 3).mean((2, 4))
    assert np.abs(first - averaged).mean() < 2
