"""Ids and labels as columns: what is written comes back, and nothing else is taken for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from samples import a_manifest, a_split

from ddpipe.data import npy
from ddpipe.data.catalogue import objects_of, shards_of
from ddpipe.data.columns import Strings, text
from ddpipe.data.index import from_bytes, open_index
from ddpipe.data.manifest import SPLITS, ColumnRef, DatasetManifest, Split
from ddpipe.data.shards import object_key
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject
from ddpipe.storage import open_store

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
"""What may be the name of a sample."""


@given(st.lists(NAMES))
def test_a_column_of_text_gives_back_its_strings(names: list[str]) -> None:
    column = Strings(text(names))
    assert list(column) == names
    assert [column[place] for place in range(len(names))] == names
    assert list(column[1:]) == names[1:]


@given(st.lists(st.tuples(NAMES, st.tuples(*3 * [st.integers(0, 1)])), min_size=1), st.booleans())
def test_an_index_gives_back_its_samples(samples: list[tuple[str, tuple[int, ...]]], several: bool) -> None:
    ids = [name for name, _ in samples]
    labels = [row if several else row[0] for _, row in samples]
    with TemporaryDirectory() as folder:
        store = open_store(folder)
        split = a_split(len(ids), 3, ids=ids, labels=labels, store=store)
        written = _manifest(split, task="multilabel" if several else "multiclass", classes=("a", "b", "c"))
        index = open_index(DatasetManifest.from_json(written.to_json()), "train", store, Path(folder))
        assert list(index.sample_ids) == ids
        np.testing.assert_array_equal(index.labels, labels)


def test_an_index_is_mapped_into_memory_and_cannot_be_changed(tmp_path: Path) -> None:
    """All processes of a machine share its pages."""
    store = open_store(str(tmp_path))
    index = open_index(_manifest(a_split(5, store=store)), "train", store, tmp_path)
    for column in (index.sample_ids.column, index.labels):
        assert not column.flags.owndata
        assert not column.flags.writeable


def test_groups_come_back_as_numbers_and_no_names(tmp_path: Path) -> None:
    """Which images are of one patient is needed, not who that is."""
    store = open_store(str(tmp_path))
    split = a_split(4, groups=["ann", "bob", "ann", "eve"], store=store)
    manifest = DatasetManifest.from_json(_manifest(split).to_json())
    index = open_index(manifest, "train", store, tmp_path)
    assert index.groups is not None
    assert index.groups.tolist() == [0, 1, 0, 2]
    assert all(b"ann" not in store.read(info.key) for info in store.list("columns/"))
    assert objects_of(manifest) - shards_of(manifest) == {split.sample_ids, split.labels, split.groups}
    assert "groups" not in _manifest(a_split(4)).to_json()


@pytest.mark.parametrize("labels", [[[0, 2], [1, 1]], [[0, 1], [1, -1]]], ids=str)
def test_a_sample_has_each_of_several_labels_or_not(labels: ArrayLike, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    right = a_split(2, labels=[[0, 1], [1, 1]], store=store)
    wrong = replace(right, labels=_stored(np.asarray(labels), tmp_path))
    assert len(open_index(_manifest(right, task="multilabel"), "train", store, tmp_path).labels) == 2
    with pytest.raises(DatasetError, match="2 samples of 2 classes"):
        open_index(_manifest(wrong, task="multilabel"), "train", store, tmp_path)


@pytest.mark.parametrize("groups", [[0, 1], [0.0] * 5, [-1, 0, 0, 0, 0], [[0]] * 5], ids=str)
def test_groups_of_other_types_are_refused(tmp_path: Path, groups: ArrayLike) -> None:
    store = open_store(str(tmp_path))
    wrong = replace(a_split(5, store=store), groups=_stored(np.asarray(groups), tmp_path))
    with pytest.raises(DatasetError, match="5 samples of 2 classes"):
        open_index(_manifest(wrong), "train", store, tmp_path)


def test_a_changed_or_missing_column_is_reported(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    split = a_split(5, store=store)
    store.write(object_key(split.labels), b"something else")
    with pytest.raises(DatasetError, match="has the hash"):
        open_index(_manifest(split), "train", store, tmp_path)
    store.delete(object_key(split.labels))
    with pytest.raises(NoSuchObject):
        open_index(_manifest(split), "train", store, tmp_path)


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 0, 1], [0, 1, -1, 0, 1], [1, 1, 1, 0, 0], [0, 1], [[0, 1]] * 5, [[0, 1, 1, 0]] * 5]
)
def test_labels_that_the_manifest_does_not_count_so_are_refused(labels: ArrayLike, tmp_path: Path) -> None:
    """Although their hash is right: somebody made such a manifest."""
    store = open_store(str(tmp_path))
    right = a_split(5, store=store)
    wrong = replace(right, labels=_stored(np.asarray(labels), tmp_path))
    with pytest.raises(DatasetError, match="5 samples of 2 classes"):
        open_index(_manifest(wrong), "train", store, tmp_path)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 0, 1, 0], np.uint8),
        np.array([0, 1, 0, 1, 0], np.int32),
        np.array([[1, 0], [1, 0], [1, 1], [0, 1], [0, 0]]),
    ],
    ids=["bytes", "narrow", "several"],
)
def test_labels_of_another_type_are_refused_although_their_counts_are_right(
    labels: NDArray[Any], tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    wrong = replace(a_split(5, store=store), labels=_stored(labels, tmp_path))
    with pytest.raises(DatasetError, match="5 samples of 2 classes"):
        open_index(_manifest(wrong), "train", store, tmp_path)


def test_columns_of_other_types_are_refused_and_pickles_not_loaded(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    right = a_split(5, store=store)
    for column in (np.arange(5.0), np.arange(5), np.array([b"a"] * 4), np.array([[b"a"]] * 5)):
        with pytest.raises(DatasetError, match="5 samples of 2 classes"):
            open_index(
                _manifest(replace(right, sample_ids=_stored(column, tmp_path))), "train", store, tmp_path
            )
    objects = _stored(np.array([print] * 5, dtype=object), tmp_path)
    with pytest.raises(DatasetError, match="damaged"):
        open_index(_manifest(replace(right, labels=objects)), "train", store, tmp_path)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, 2]),
        np.array([[1, 2], [3, 4]], np.uint64),
        np.array([2, 1], np.uint64),
        np.array([1, 1], np.uint64),
    ],
    ids=["signed", "of two dimensions", "not sorted", "with one twice"],
)
def test_a_list_of_hashes_is_sorted_and_has_each_once(column: NDArray[Any]) -> None:
    with pytest.raises(CorruptObject, match="is malformed: trained_on"):
        from_bytes(npy.to_bytes(column), "trained_on")
    good = np.array([1, 2], np.uint64)
    assert (from_bytes(npy.to_bytes(good), "trained_on") == good).all()


def _manifest(split: Split, **changes: object) -> DatasetManifest:
    return a_manifest(splits=dict.fromkeys(SPLITS, split), **changes)


def _stored(column: NDArray[Any], folder: Path) -> ColumnRef:
    """Any array as a column; it may be no good one."""
    path = folder / "column.npy"
    np.save(path, column)
    data = path.read_bytes()
    ref = ColumnRef(hashlib.sha256(data).hexdigest(), len(data))
    open_store(str(folder)).write(object_key(ref), data)
    return ref
