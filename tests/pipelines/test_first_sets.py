"""What people bring first: six kinds of sets, prepared as they are, and one of them trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from first_sets import FIRST_SETS

import ddpipe
from ddpipe.data.manifest import SPLITS, DatasetManifest, load_manifest

Prepare = Callable[[str], DatasetManifest]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    def prepare(name: str) -> DatasetManifest:
        given = FIRST_SETS[name](tmp_path / name.replace(" ", "-"))
        made: Any = ddpipe.prepare(given["source_path"], store=str(tmp_path / "store"))
        return load_manifest(made.manifest_uri)

    return prepare


@pytest.mark.parametrize("name", FIRST_SETS)
def test_each_class_has_its_share_of_each_split(
    name: str, prepared: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        manifest = prepared(name)
    counts = {split: manifest.splits[split].per_class for split in SPLITS}
    for each in zip(*counts.values(), strict=True):
        images = sum(each)
        for split, share in zip(counts, (0.8, 0.1, 0.1), strict=True):
            assert abs(each[list(counts).index(split)] - share * images) <= 1, (split, each)
    smallest = min(zip(map(sum, zip(*counts.values(), strict=True)), manifest.classes, strict=True))
    assert f"class '{smallest[1]}' has few images" in caplog.text
    assert manifest.name == name.replace(" ", "-")


def test_what_is_wide_or_tall_is_kept_whole(prepared: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        wide, varied = prepared("parts"), prepared("240 sizes")
    assert wide.shape[1] > 2 * wide.shape[0], "most parts are 320 by 120"
    assert caplog.text.count("Images are kept whole") == 2
    assert "240 sizes from 40 × 40 to 145 × 152" in caplog.text  # noqa: RUF001
    assert varied.classes == ("falling", "lying", "rising")


def test_the_label_of_a_table_is_the_column_of_that_name(prepared: Prepare) -> None:
    manifest = prepared("table")
    assert manifest.classes == ("healthy", "ill")
    assert manifest.task == "multiclass"


@pytest.mark.slow
def test_a_rare_defect_is_scored_by_what_a_constant_answer_does_not_reach(tmp_path: Path) -> None:
    given = FIRST_SETS["parts"](tmp_path / "parts")
    result = ddpipe.run(
        given["source_path"], epochs=1, store=str(tmp_path / "store"), runs=str(tmp_path / "runs")
    )
    headline, *_ = [line for line in result.text.splitlines() if "constant answer" in line]
    assert "balanced_accuracy" in headline
    assert headline.endswith("constant answer 0.5000")
    accuracy = next(line for line in result.text.splitlines() if line.startswith("  accuracy"))
    assert accuracy.endswith("constant answer 0.9500")
