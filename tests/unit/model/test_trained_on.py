"""A model is neither started from weights that saw its test images nor scored on images that it saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import a_dataset
from recipes import plain
from samples import a_split, written

from ddpipe.data.columns import text
from ddpipe.data.index import hashed, trained_on
from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.data.npy import to_bytes
from ddpipe.errors import CheckpointError, ParameterError
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.export.export import export
from ddpipe.model.package import FORMAT, seen_by
from ddpipe.storage import open_store
from ddpipe.train.train import train

RECIPE = plain(epochs=1, batch_size=6, precision="fp32")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from data to package; its dataset's address is in the file `dataset`."""
    here = tmp_path_factory.mktemp("run")
    dataset = with_unique_ids(a_dataset(str(here / "store")))
    train(dataset, str(here / "training"), RECIPE)
    evaluate(str(here / "training"), dataset, str(here / "evaluation"))
    export(str(here / "training"), dataset, str(here / "evaluation"), str(here / "model"))
    (here / "dataset").write_text(dataset)
    return here


def with_unique_ids(dataset: str) -> str:
    """The version with an id of its own for each sample, as prepared datasets have."""
    manifest, store = load_manifest(dataset), store_of(dataset)
    splits = {
        name: a_split(
            split.count, 2, split.shards, ids=[f"{name}/{one}.png" for one in range(split.count)], store=store
        )
        for name, split in manifest.splits.items()
    }
    return written(store, replace(manifest, splits=splits))


def swapped(dataset: str) -> str:
    """The version with training and test splits exchanged: another split seed, taken to its end."""
    manifest = load_manifest(dataset)
    splits = {**manifest.splits, "train": manifest.splits["test"], "test": manifest.splits["train"]}
    return written(store_of(dataset), replace(manifest, splits=splits, seed=1))


def test_package_lists_what_it_was_trained_on(run: Path) -> None:
    dataset = (run / "dataset").read_text()
    package = seen_by(FORMAT.open(str(run / "model")))
    assert package is not None
    assert np.array_equal(package, trained_on(load_manifest(dataset), store_of(dataset)))
    assert len(package) == 6


def test_warm_start_that_saw_the_test_images_is_rejected(run: Path, tmp_path: Path) -> None:
    """Accuracy was 1.0000, and the model card said that it never saw them."""
    other = swapped((run / "dataset").read_text())
    recipe = replace(RECIPE, warm_start=str(run / "model"))
    with pytest.raises(ParameterError, match="trained on 6 of 6 test images"):
        train(other, str(tmp_path / "training"), recipe)
    assert not list((tmp_path / "training").glob("checkpoints/*"))


def test_warm_start_on_the_same_split_adds_to_what_was_seen(run: Path, tmp_path: Path) -> None:
    dataset = (run / "dataset").read_text()
    train(dataset, str(tmp_path / "training"), replace(RECIPE, warm_start=str(run / "model")))
    assert (tmp_path / "training" / "trained_on.npy").read_bytes() == (
        run / "training" / "trained_on.npy"
    ).read_bytes()


def test_model_that_saw_a_test_image_is_not_scored(run: Path, tmp_path: Path) -> None:
    dataset = (run / "dataset").read_text()
    training = open_store(str(run / "training"))
    before = training.read("trained_on.npy")
    training.write("trained_on.npy", to_bytes(hashed(text(["test/7.png", "validation/1.png"]))))
    try:
        with pytest.raises(CheckpointError, match="trained on 1 of 2 validation images and 1 of 37 test"):
            evaluate(str(run / "training"), dataset, str(tmp_path / "evaluation"))
    finally:
        training.write("trained_on.npy", before)
