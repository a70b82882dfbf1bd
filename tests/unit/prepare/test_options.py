"""What preparing can be asked for beyond its defaults, from the raw data to manifest and page."""

from __future__ import annotations

import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import a_folder, an_image, labels_by_id, sample_ids

from ddpipe.data.index import SampleIndex, open_index
from ddpipe.data.manifest import SPLITS, store_of
from ddpipe.errors import ParameterError, SourceError
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.report import data_report_html, how_split
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store


@pytest.fixture
def toys(tmp_path: Path) -> PrepareSpec:
    """Two classes, of 20 images and 10."""
    a_folder(tmp_path / "toys", {"ball": 20, "kite": 10})
    return PrepareSpec(source="folder", source_path=str(tmp_path / "toys"), store=str(tmp_path / "store"))


def test_exact_shares_are_met_and_reported(toys: PrepareSpec) -> None:
    manifest = prepare(replace(toys, stratify="exact")).manifest
    counts = {name: split.per_class for name, split in manifest.splits.items()}
    assert counts == {"train": (16, 8), "validation": (2, 1), "test": (2, 1)}
    assert "within one; images of earlier versions kept their split" in how_split(manifest)


def _splits(prepared: Prepared) -> dict[str, str]:
    return {name: split for split in SPLITS for name in sample_ids(prepared.manifest_uri, split)}


@pytest.mark.parametrize("folds", [0, 3])
def test_exact_shares_move_no_image_of_earlier_versions(folds: int, toys: PrepareSpec) -> None:
    """Otherwise a model that learned from yesterday's version knows a part of today's test images."""
    spec = replace(toys, stratify="exact", folds=folds)
    before = _splits(prepare(spec))
    for night in range(1, 6):
        a_folder(Path(toys.source_path), {"ball": 7, "kite": 4}, start=100 * night)
        prepared = prepare(replace(spec, fold=night % 3 if folds else 0))
        after = _splits(prepared)
        moved = [name for name in before if (before[name] == "test") != (after[name] == "test")]
        assert not moved
        if not folds:
            assert before == {name: after[name] for name in before}
        balls, kites = prepared.manifest.splits["test"].per_class
        assert balls == pytest.approx(0.1 * (20 + 7 * night), abs=1.01)
        assert kites == pytest.approx(0.1 * (10 + 4 * night), abs=1.01)
        before = after
    assert prepare(replace(spec, fold=night % 3 if folds else 0)).reused


def test_folds_of_one_version_are_one_partition(toys: PrepareSpec) -> None:
    """Although each fold is a version, and those before it are kept to."""
    spec = replace(toys, stratify="exact", folds=3)
    prepare(spec)
    a_folder(Path(toys.source_path), {"ball": 7, "kite": 4}, start=100)
    folds = [_splits(prepare(replace(spec, fold=fold))) for fold in range(3)]
    for name in folds[0]:
        found = sorted(fold[name] for fold in folds)
        assert found in (["test"] * 3, ["train", "train", "validation"])


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
    spec = replace(toys, stratify="exact")
    first = prepare(spec)
    a_folder(Path(toys.source_path), {"ball": 7}, start=100)
    second = prepare(spec)
    Path(second.manifest_uri).write_text("{}")
    a_folder(Path(toys.source_path), {"ball": 7}, start=200)
    before, after = _splits(first), _splits(prepare(spec))
    assert before == {name: after[name] for name in before}
    assert f"version {second.dataset_id[:12]} is ignored" in caplog.text


def test_a_class_that_does_not_fill_all_folds_is_refused(toys: PrepareSpec) -> None:
    with pytest.raises(SourceError) as caught:
        prepare(replace(toys, folds=10))
    assert "class 'kite' has 10 images" in caught.value.seen
    assert "at least 11 of them (fold 9, " in caught.value.do
    assert prepare(replace(toys, folds=9)).manifest.split_rule["folds"] == 9


def _chest_x_rays(root: Path, rows: list[str]) -> PrepareSpec:
    """A table as CheXpert's: 1, 0, -1 where the report hedges, blank where it says nothing."""
    a_folder(root, {"images": len(rows)})
    lines = [f"images/{number:04d}.png,{row}" for number, row in enumerate(rows)]
    (root / "train.csv").write_text("\n".join(["Path,Edema,Cardiomegaly", *lines]))
    return PrepareSpec(source="csv", source_path=str(root), store=str(root.parent / "store"))


ROWS = [*["1.0,"] * 8, *[",1.0"] * 8, *["0.0,1"] * 8, "-1.0,1", "1,-1", "-1,-1.0"]


def test_uncertain_labels_are_refused_with_their_rows_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        prepare(_chest_x_rays(tmp_path / "raw", [*ROWS, ","]))
    assert "a label is -1, uncertain (lines 26, 27, 28: 3 in all)" in caught.value.seen
    assert "'Edema' is '': no label (lines 10, 11, 12, 13, 14 …: 9 in all)" in caught.value.seen
    assert "`uncertain` says what -1 means: zero, one or drop; blanks next" in caught.value.do
    assert "skip_unlabelled" in caught.value.do


@pytest.mark.parametrize(
    ("policy", "labels", "expected"),
    [
        ("zero", [(0, 1), (1, 0), (0, 0)], "count as 0"),
        ("one", [(1, 1), (1, 1), (1, 1)], "count as 1"),
        ("drop", [], "are left out with their images"),
    ],
)
def test_uncertain_labels_become_what_the_user_says(
    policy: str, labels: list[tuple[int, int]], expected: str, tmp_path: Path
) -> None:
    prepared = prepare(replace(_chest_x_rays(tmp_path / "raw", ROWS), uncertain=policy))
    own = [*[(1, 0)] * 8, *[(0, 1)] * 16, *labels]
    assert labels_by_id(prepared.manifest_uri) == {
        f"images/{number:04d}.png": label for number, label in enumerate(own)
    }
    assert prepared.manifest.source["uncertain"] == {"as": policy, "labels": 4, "blanks": 16}
    assert prepared.manifest.left_out == ({"rows with an uncertain label": 3} if policy == "drop" else {})
    page = data_report_html(prepared.manifest, open_store(str(tmp_path / "store")))
    assert f"Uncertain labels (-1) {expected}, blanks next to other labels count as 0" in page
    assert ("<li>3 rows with an uncertain label</li>" in page) == (policy == "drop")


def test_a_blank_row_has_no_label_under_any_policy(tmp_path: Path) -> None:
    spec = replace(_chest_x_rays(tmp_path / "raw", [*ROWS, ",", "nan,"]), uncertain="zero")
    with pytest.raises(SourceError, match="no label"):
        prepare(spec)
    manifest = prepare(replace(spec, skip_unlabelled=True)).manifest
    assert manifest.left_out == {"rows without a label": 2}


def test_a_policy_for_uncertain_labels_needs_several_columns(tmp_path: Path) -> None:
    spec = replace(_chest_x_rays(tmp_path / "raw", ROWS), uncertain="zero", label_columns="Edema")
    with pytest.raises(SourceError, match="it has one column of labels, 'Edema'"):
        prepare(spec)


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    spec = replace(_chest_x_rays(tmp_path / "raw", [*ROWS, ","]), uncertain="drop", skip_unlabelled=True)
    (tmp_path / "raw/images/0000.png").write_bytes(b"no image")
    manifest = prepare(replace(spec, skip_bad=True)).manifest
    assert manifest.left_out == {
        "rows with an uncertain label": 3,
        "rows without a label": 1,
        "unreadable images": 1,
    }
    page = data_report_html(manifest, open_store(str(tmp_path / "store")))
    for line in ("3 rows with an uncertain label", "1 rows without a label", "1 unreadable images"):
        assert f"<li>{line}</li>" in page


def _dated(root: Path, days: list[str]) -> PrepareSpec:
    """Images of two classes in turns, each from one of these days."""
    a_folder(root, {"images": len(days)})
    rows = (f"images/{number:04d}.png,{'ab'[number % 2]},{day}" for number, day in enumerate(days))
    (root / "train.csv").write_text("\n".join(["file,kind,taken", *rows]))
    store = str(root.parent / "store")
    return PrepareSpec(source="csv", source_path=str(root), store=store, time_column="taken")


DAYS = [f"2026-11-{day:02d}" for day in range(1, 24) for _ in range(20)]


def test_the_newest_days_are_counted_back_from_the_newest_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = _dated(tmp_path / "raw", [*DAYS, "2026-11-23T23:30+01:00"])
    everything = prepare(spec)
    week = prepare(replace(spec, newest_days=8))
    newest = {f"images/{number:04d}.png" for number in range(300, 461)}
    splits = {name: split for split in SPLITS for name in sample_ids(everything.manifest_uri, split)}
    assert set(labels_by_id(week.manifest_uri)) == newest
    assert week.manifest.left_out == {"rows 8 days or more before the newest, of 2026-11-23 22:30": 300}
    assert "300 rows 8 days or more before the newest" in caplog.text
    assert "not named" not in caplog.text
    assert week.encoded == 0, "the images were stored when all rows were prepared"
    kept = {name: split for split in SPLITS for name in sample_ids(week.manifest_uri, split)}
    assert kept == {name: splits[name] for name in newest}, "no image may move to another split"
    assert prepare(replace(spec, newest_days=8)).reused


def test_a_row_whose_time_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        prepare(replace(_dated(tmp_path / "raw", [*DAYS, "", "23.11.2026"]), newest_days=7))
    assert (
        "'taken' is '', no time such as 2026-11-23 or 2026-11-23T08:30 (line 462: 1 in all)"
        in caught.value.seen
    )
    assert "'taken' is '23.11.2026', no time" in caught.value.seen


@pytest.mark.parametrize("odd", ["9999-12-31T23:59-01:00", "yesterday"])
def test_no_time_of_a_table_is_a_traceback(odd: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no time such as"):
        prepare(replace(_dated(tmp_path / "raw", [*DAYS, odd]), newest_days=7))
    ancient = prepare(replace(_dated(tmp_path / "old", [*DAYS, "0001-01-01"]), newest_days=1e6))
    assert ancient.manifest.left_out == {}


def test_newest_days_need_a_column_of_times() -> None:
    spec = PrepareSpec(source="csv", source_path="raw", newest_days=7)
    with pytest.raises(ParameterError, match="`newest_days` is 7, but `time_column` is empty"):
        spec.validated()


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


@pytest.mark.timeout(20)
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
