"""What preparing can be asked for beyond its defaults, from the raw data to manifest and page."""

from __future__ import annotations

import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import a_folder, an_image, sample_ids

from ddpipe.data.index import SampleIndex, open_index
from ddpipe.data.manifest import SPLITS, manifest_key, store_of
from ddpipe.errors import ParameterError, SourceError
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.report import how_split
from ddpipe.prepare.spec import PrepareSpec


@pytest.fixture
def toys(tmp_path: Path) -> PrepareSpec:
    """Two classes, of 20 images and 10."""
    a_folder(tmp_path / "toys", {"ball": 20, "kite": 10})
    return PrepareSpec(source="folder", source_path=str(tmp_path / "toys"), store=str(tmp_path / "store"))


def test_exact_shares_are_met_and_reported(toys: PrepareSpec) -> None:
    manifest = prepare(toys).manifest
    counts = {name: split.per_class for name, split in manifest.splits.items()}
    assert counts == {"train": (16, 8), "validation": (2, 1), "test": (2, 1)}
    assert "within one; images of earlier versions kept their split" in how_split(manifest)


def _splits(prepared: Prepared) -> dict[str, str]:
    return {name: split for split in SPLITS for name in sample_ids(prepared.manifest_uri, split)}


def test_no_image_of_an_earlier_version_moves(toys: PrepareSpec) -> None:
    """Otherwise a model that learned from yesterday's version knows a part of today's test images."""
    before = _splits(prepare(toys))
    for night in range(1, 6):
        a_folder(Path(toys.source_path), {"ball": 7, "kite": 4}, start=100 * night)
        prepared = prepare(toys)
        after = _splits(prepared)
        assert before == {name: after[name] for name in before}
        balls, kites = prepared.manifest.splits["test"].per_class
        assert balls == pytest.approx(0.1 * (20 + 7 * night), abs=1.01)
        assert kites == pytest.approx(0.1 * (10 + 4 * night), abs=1.01)
        before = after
    assert prepare(toys).reused


def test_images_keep_the_splits_of_versions_that_were_split_by_hash(toys: PrepareSpec) -> None:
    """As versions of before 0.2 were: their rule has another kind, the same fractions and seed."""
    prepared = prepare(toys)
    rule = {**prepared.manifest.split_rule, "kind": "hash of id"}
    splits = dict(prepared.manifest.splits)
    splits["validation"], splits["test"] = splits["test"], splits["validation"]
    manifest = replace(prepared.manifest, split_rule=rule, splits=splits)
    store_of(prepared.manifest_uri).write(
        manifest_key(manifest.name, manifest.dataset_id), manifest.to_json().encode()
    )
    Path(prepared.manifest_uri).unlink()
    after = prepare(toys)
    assert after.manifest == manifest
    assert after.reused
    a_folder(Path(toys.source_path), {"ball": 7}, start=100)
    assert prepare(toys).manifest.split_rule["kind"] == "stratified"


def test_test_images_that_were_trained_on_are_counted(
    toys: PrepareSpec, caplog: pytest.LogCaptureFixture
) -> None:
    first = prepare(toys)
    second = prepare(replace(toys, split_seed=1))
    before, after = _splits(first), _splits(second)
    moved = sum(split == "test" and before[name] != "test" for name, split in after.items())
    count = second.manifest.splits["test"].count
    said = f"{moved} of {count} test images were not in the test split of version {first.dataset_id[:12]}"
    assert moved
    assert said in caplog.text
    caplog.clear()
    assert prepare(replace(toys, split_seed=1)).reused
    a_folder(Path(toys.source_path), {"ball": 40}, start=100)
    prepare(replace(toys, split_seed=1))
    assert "test images were not" not in caplog.text


def test_an_unreadable_version_is_no_example(toys: PrepareSpec, caplog: pytest.LogCaptureFixture) -> None:
    spec = toys
    first = prepare(spec)
    a_folder(Path(toys.source_path), {"ball": 7}, start=100)
    second = prepare(spec)
    Path(second.manifest_uri).write_text("{}")
    a_folder(Path(toys.source_path), {"ball": 7}, start=200)
    before, after = _splits(first), _splits(prepare(spec))
    assert before == {name: after[name] for name in before}
    assert f"version {second.dataset_id[:12]} is ignored" in caplog.text


def _indices(prepared: Prepared) -> list[SampleIndex]:
    store = store_of(prepared.manifest_uri)
    return [open_index(prepared.manifest, split, store) for split in SPLITS]


def _groups(manifest_uri: str, pattern: str) -> dict[str, set[str]]:
    """The splits in which each group is."""
    found: dict[str, set[str]] = {}
    for split in SPLITS:
        for name in sample_ids(manifest_uri, split):
            match = re.search(pattern, name)
            found.setdefault(match[1] if match else "", set()).add(split)
    return found


def _scans(root: Path) -> PrepareSpec:
    """Five images of each of 20 patients, whose names say whose they are."""
    for number in range(100):
        an_image(root / "ab"[number % 2] / f"p{number // 5}-{number}.png", seed=number)
    return PrepareSpec(source="folder", source_path=str(root), store=str(root.parent / "store"))


@pytest.mark.parametrize("pattern", [r"/p(\d+)-", r"/p\d+", r"/(?:p|q)(\d+)"])
def test_what_a_path_says_stays_together(pattern: str, tmp_path: Path) -> None:
    prepared = prepare(replace(_scans(tmp_path / "scans"), group_pattern=pattern))
    groups = _groups(prepared.manifest_uri, r"/p(\d+)-")
    assert len(groups) == 20
    indices = _indices(prepared)
    assert sum(len(np.unique(index.groups)) for index in indices if index.groups is not None) == 20
    for index in indices:
        patients = [re.search(r"/p(\d+)-", name)[1] for name in index.sample_ids]  # type: ignore[index]
        assert len({*zip(patients, index.groups.tolist(), strict=True)}) == len({*patients})  # type: ignore[union-attr]
    assert all(len(splits) == 1 for splits in groups.values())
    assert sum(prepared.manifest.split_rule["groups"].values()) == 20
    assert prepared.manifest.split_rule["group_pattern"] == pattern
    assert "by group" in how_split(prepared.manifest)


def test_no_pattern_takes_exponential_time(tmp_path: Path) -> None:
    """Python's `re` needs 2^60 steps for this one."""
    for number in range(10):
        an_image(tmp_path / "scans" / "ab"[number % 2] / f"{'a' * 60}-{number}.png", seed=number)
    spec = PrepareSpec(source="folder", source_path=str(tmp_path / "scans"), store=str(tmp_path / "store"))
    with pytest.raises(SourceError, match="matches nothing in some paths"):
        prepare(replace(spec, group_pattern="(a+)+$"))


def test_names_in_tars_say_groups_as_well(tmp_path: Path) -> None:
    folder = Path(_scans(tmp_path / "scans").source_path)
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for path in sorted(folder.rglob("*.png")):
            tar.add(path, path.name)
            label = path.with_suffix(".cls")
            label.write_text(path.parent.name)
            tar.add(label, label.name)
    spec = PrepareSpec(source="webdataset", source_path=str(tmp_path / "tars"), store=str(tmp_path / "store"))
    groups = _groups(prepare(replace(spec, group_pattern=r"^p(\d+)")).manifest_uri, r"^p(\d+)")
    assert len(groups) == 20
    assert all(len(splits) == 1 for splits in groups.values())


def test_a_pattern_that_matches_only_some_paths_is_refused(tmp_path: Path) -> None:
    spec = _scans(tmp_path / "scans")
    an_image(tmp_path / "scans/a/unknown.png")
    with pytest.raises(SourceError) as caught:
        prepare(replace(spec, group_pattern=r"/p(\d+)-"))
    assert "1 problem:\n  - a/unknown.png" in caught.value.seen


def test_an_invalid_pattern_is_refused_before_any_work(
    toys: PrepareSpec,
) -> None:
    with pytest.raises(ParameterError, match="not a regular expression of RE2: missing \\)"):
        prepare(replace(toys, group_pattern="(", source_path="/nowhere"))
    with pytest.raises(ParameterError, match=r"not a regular expression of RE2: invalid perl operator"):
        prepare(replace(toys, group_pattern=r"(?<=/)p\d+", source_path="/nowhere"))
    with pytest.raises(ParameterError, match="`group_pattern` is for the sources folder, webdataset"):
        prepare(PrepareSpec(group_pattern="p"))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"source_path": "/data/My Photos/"}, "my-photos"),
        ({"source": "folder", "source_path": "s3://bucket/cats.v2"}, "cats.v2"),
        ({"source": "csv", "source_path": "scans.csv"}, "scans"),
        ({"source": "webdataset", "source_path": "birds.tar.gz"}, "birds"),
        ({"source_path": "photos", "dataset_name": "mine"}, "mine"),
        ({"source": "mnist", "source_path": "/data/files"}, "mnist"),
        ({"source_path": "/"}, "auto"),
        ({}, "digits"),
    ],
)
def test_a_dataset_is_called_after_its_folder(given: dict[str, str], name: str) -> None:
    assert PrepareSpec(**given).name == name
