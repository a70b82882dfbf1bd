"""What a store holds besides the versions: what differs, what is damaged, what nobody needs any more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from samples import a_manifest, a_split, published, some_images, written

from ddpipe.data.catalogue import (
    CLAIMS,
    CLEANINGS,
    Difference,
    clean_up,
    damage,
    difference,
    garbage,
    intended_shards,
    intent,
    objects_of,
    per_class,
    shards_of,
)
from ddpipe.data.manifest import SPLITS, DatasetManifest, ShardRef, load_manifest
from ddpipe.data.shards import object_key
from ddpipe.errors import NoAccess
from ddpipe.storage import Store, open_store
from ddpipe.storage.files import FileStore


def later() -> datetime:
    """A time at which all that a test has written is older than no grace, read when it is called."""
    return datetime.now(UTC) + timedelta(minutes=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def _several(
    store: Store, size: int, train: Mapping[str, list[int]], test: Mapping[str, list[int]]
) -> DatasetManifest:
    """A version with several labels per sample, all splits but that of tests the same."""
    train_split, test_split = (
        a_split(
            len(labels),
            shards=[ShardRef(digit * 64, size, len(labels))],
            ids=list(labels),
            labels=list(labels.values()),
            store=store,
        )
        for digit, labels in (("a", train), ("b", test))
    )
    splits = {"train": train_split, "validation": train_split, "test": test_split}
    return a_manifest(task="multilabel", splits=splits)


def test_versions_with_several_labels_differ_by_their_names(store: Store) -> None:
    old = _several(store, 5, {"one": [1, 1], "two": [0, 1]}, {"x": [0, 0], "w": [1, 0], "v": [1, 0]})
    new = _several(store, 5, {"one": [1, 1], "two": [1, 0]}, {"x": [1, 1], "z": [0, 1], "y": [0, 1]})
    assert difference((old, store), (new, store)) == Difference(
        added=("y", "z"),
        removed=("v", "w"),
        moved={},
        relabelled={"two": ("kité", "ball"), "x": ("", "ball, kité")},
        shared_bytes=5 + 5,
    )
    assert per_class(old, "train") == {"ball": 1, "kité": 2}


def test_each_damaged_object_is_listed_with_its_problem(store: Store) -> None:
    uri = published(store, {split: [some_images(2, seed=place)] for place, split in enumerate(SPLITS)})
    manifest = load_manifest(uri)
    assert damage(objects_of(manifest), store) == {}
    changed, lost, _ = sorted(shards_of(manifest), key=lambda shard: shard.sha256)
    store.write(object_key(changed), b"")
    store.delete(object_key(lost))
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    found = damage(objects_of(manifest), store)
    assert list(found) == [changed, lost]
    assert found[changed] == f"{object_key(changed)}: its content has the hash {empty}"
    assert found[lost].startswith(f"{object_key(lost)}: ")


def test_entries_about_an_unused_shard_go_with_it(store: Store) -> None:
    """Those about shards that somebody needs or that are not there stay, as does what else lies there."""
    for key in ("shards/aa.tar", "shards/bb.tar", "datasets/toys/other/aa.json", "datasets/toys/aa.json"):
        store.write(key, b"something")
    for name in ("aa.one.json", "aa.json", "bb.json", "cc.json"):
        store.write(f"datasets/toys/encoded/{name}", b"{}")
    store.write("claims/1.json", b'["bb"]')
    found = [info.key for info in garbage(store, timedelta(0), later())]
    assert sorted(found[:2]) == ["datasets/toys/encoded/aa.json", "datasets/toys/encoded/aa.one.json"]
    assert found[2:] == ["shards/aa.tar"], "last, as nothing may point to it"


def test_what_a_version_names_is_needed(store: Store) -> None:
    manifest = a_manifest(splits=dict.fromkeys(SPLITS, a_split(2, groups=["a", "b"], store=store)))
    written(store, manifest)
    store.write("shards/" + "0" * 64 + ".npy", b"its shard")
    assert garbage(store, timedelta(0), later()) == []


def test_an_intent_lasts_as_long_as_its_block(store: Store) -> None:
    with (
        intent(store, CLAIMS, ["b", "a"]),
        intent(store, CLAIMS, {"c"}),
        intent(store, CLEANINGS, []),
    ):
        first, second, third = [info.key for info in store.list("cl")]
        assert sorted(json.loads(store.read(key)) for key in (first, second)) == [["a", "b"], ["c"]]
        assert (first[:7], third[:10]) == ("claims/", "cleanings/")
        assert json.loads(store.read(third)) == []
        assert intended_shards(store, CLAIMS) == {"a", "b", "c"}
        assert intended_shards(store, CLEANINGS) == set()
    assert list(store.list()) == []


def test_who_may_not_delete_may_publish(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: FileStore, key: str) -> None:
        raise NoAccess(what="no", which=key, seen="it is forbidden", do="ask")

    monkeypatch.setattr(FileStore, "delete", refused)
    with intent(store, CLAIMS, ["a"]):
        pass
    assert intended_shards(store, CLAIMS) == {"a"}


def test_what_is_deleted_is_announced_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    announced, delete = [], FileStore.delete

    def deleted(self: FileStore, key: str) -> None:
        announced.append((key[:9], sorted(intended_shards(self, CLEANINGS))))
        delete(self, key)

    store.write("shards/aa.tar", b"something")
    store.write("columns/bb.npy", b"something")
    monkeypatch.setattr(FileStore, "delete", deleted)
    gone = clean_up(store, timedelta(0), later())
    assert sorted(info.key for info in gone) == ["columns/bb.npy", "shards/aa.tar"]
    assert sorted(announced[:2]) == [("columns/b", ["aa", "bb"]), ("shards/aa", ["aa", "bb"])]
    assert announced[2:] == [("cleanings", ["aa", "bb"])]
    assert list(store.list()) == []
