"""What preparing can be asked for beyond its defaults, from the raw data to manifest and page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from samples import a_folder

from ddpipe.data.manifest import SPLITS
from ddpipe.errors import SourceError
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.report import how_split
from ddpipe.prepare.spec import PrepareSpec


@pytest.fixture
def toys(tmp_path: Path) -> PrepareSpec:
    """Two classes, of 20 images and 10."""
    a_folder(tmp_path / "toys", {"ball": 20, "kite": 10})
    return PrepareSpec(source="folder", source_path=str(tmp_path / "toys"), store=str(tmp_path / "store"))


def test_exact_shares_are_met_and_told(toys: PrepareSpec) -> None:
    manifest = prepare(replace(toys, stratify="exact")).manifest
    counts = {split: manifest.splits[split].per_class for split in SPLITS}
    assert counts == {"train": (16, 8), "validation": (2, 1), "test": (2, 1)}
    assert "each class has its share within one, so adding images may move others" in how_split(manifest)


def test_a_class_that_does_not_fill_all_folds_is_refused(toys: PrepareSpec) -> None:
    with pytest.raises(SourceError) as caught:
        prepare(replace(toys, folds=10))
    assert "class 'kite' has 10 images" in caught.value.seen
    assert "at least 11 of them (fold 9, " in caught.value.do
    assert prepare(replace(toys, folds=9)).manifest.split_rule["folds"] == 9
