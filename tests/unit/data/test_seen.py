"""Which samples a model was trained on, compared with those that judge it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import a_manifest, a_split

from ddpipe.data.columns import text
from ddpipe.data.index import (
    TRAINED_ON,
    are_in,
    counted,
    from_bytes,
    hashed,
    held_out_seen,
    samples_seen,
    trained_on,
)
from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.npy import to_bytes
from ddpipe.errors import CorruptObject
from ddpipe.storage import Store, open_store


def a_version(store: Store, **ids: list[str]) -> DatasetManifest:
    """A version whose splits hold these ids."""
    return a_manifest(
        splits={name: a_split(len(names), ids=names, store=store) for name, names in ids.items()}
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_test_images_that_a_model_was_trained_on_are_counted(store: Store) -> None:
    first = a_version(store, train=["a", "b", "c"], validation=["d"], test=["e"])
    second = a_version(store, train=["a", "d"], validation=["b"], test=["c", "e", "f"])
    seen = trained_on(first, store)
    assert held_out_seen(first, store, seen) == {}
    assert held_out_seen(second, store, seen) == {"validation": 1, "test": 1}
    assert counted(held_out_seen(second, store, seen), second) == (
        "1 of 1 validation images and 1 of 3 test images"
    )


def test_names_that_the_training_split_has_too_prove_nothing(store: Store) -> None:
    version = a_version(store, train=["0.png", "1.png"], validation=["0.png"], test=["1.png"])
    assert held_out_seen(version, store, trained_on(version, store)) == {}


def test_what_came_before_a_warm_start_counts(store: Store) -> None:
    first = a_version(store, train=["a"], validation=["x"], test=["y"])
    second = a_version(store, train=["b"], validation=["x"], test=["y"])
    third = a_version(store, train=["c"], validation=["x"], test=["a"])
    seen = trained_on(second, store, trained_on(first, store))
    assert len(seen) == 2
    assert held_out_seen(third, store, seen) == {"test": 1}


def test_of_any_ids_it_is_said_which_were_seen() -> None:
    assert are_in(text(["b", "x", "a", "b"]), hashed(text(["a", "b", "c"]))).tolist() == [1, 0, 1, 1]


def test_what_a_model_was_trained_on_lies_beside_it(store: Store) -> None:
    assert samples_seen(store.uri) is None
    store.write(TRAINED_ON, to_bytes(hashed(text(["a", "b"]))))
    found = samples_seen(store.uri)
    assert found is not None
    assert found.tolist() == hashed(text(["a", "b"])).tolist()
    store.write(TRAINED_ON, b"noise")
    with pytest.raises(CorruptObject, match=f"{store.uri}/trained_on.npy"):
        samples_seen(store.uri)


def test_hashes_survive_a_file_and_do_not_depend_on_width() -> None:
    narrow, wide = text(["a", "b"]), text(["a", "b", "a long name"])[:2]
    assert np.array_equal(hashed(narrow), hashed(wide))
    assert np.array_equal(from_bytes(to_bytes(hashed(narrow)), "file"), hashed(narrow))
    assert len(hashed(narrow[:0])) == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"noise", to_bytes(np.zeros(3)), to_bytes(np.zeros((2, 2), np.uint64))],  # type: ignore[arg-type]
)
def test_another_file_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="malformed"):
        from_bytes(data, "file")
