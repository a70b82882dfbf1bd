"""Real data sets as they are, where $DDPIPE_REAL_DATA names a folder with cifar10.tar.gz and mnist/."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from archives import unpack

from ddpipe.data.reader import open_split
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec

FOLDER = Path(os.environ.get("DDPIPE_REAL_DATA", ""))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "DDPIPE_REAL_DATA" not in os.environ, reason="DDPIPE_REAL_DATA names no folder with real data sets"
    ),
]


def test_all_of_cifar_10_as_class_folders(tmp_path: Path) -> None:
    unpack(FOLDER / "cifar10.tar.gz", tmp_path / "cifar")
    spec = PrepareSpec(
        source="cifar10",
        source_path=str(tmp_path / "cifar"),
        dataset_name="cifar10",
        store=str(tmp_path / "store"),
    )
    prepared = prepare(spec)
    assert (prepared.encoded, prepared.manifest.shape) == (60_000, (32, 32, 3))
    sizes = {name: split.count for name, split in prepared.manifest.splits.items()}
    assert sizes["test"] == 10_000
    assert sizes["validation"] == pytest.approx(50_000 / 9, rel=0.05)
    np.testing.assert_allclose(prepared.manifest.mean, (0.4914, 0.4822, 0.4465), atol=0.01)
    assert prepare(spec).reused


def test_the_test_images_of_mnist(tmp_path: Path) -> None:
    spec = PrepareSpec(
        source="mnist", source_path=str(FOLDER / "mnist"), dataset_name="mnist", store=str(tmp_path)
    )
    prepared = prepare(spec)
    assert (prepared.encoded, prepared.manifest.shape) == (10_000, (28, 28, 1))
    labels = open_split(prepared.manifest_uri, "train").labels
    assert np.bincount(labels).min() > 600
