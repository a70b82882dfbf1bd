"""The versions of a store: listed in order, found by what people write, removed with all that is theirs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from samples import a_manifest, written

from ddpipe.data.manifest import manifest_key
from ddpipe.data.versions import Version, address, origin, remove, versions
from ddpipe.errors import DatasetError, NewerFormat, NoSuchObject
from ddpipe.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def _version(store: Store, name: str, dataset_id: str, published: int) -> Version:
    """A version that was published at this time; its manifest is empty."""
    key = manifest_key(name, dataset_id)
    store.write(key, b"")
    path = store.local_path(key)
    assert path
    os.utime(path, (published, published))
    return Version(name, dataset_id, f"{store.uri}/{key}", datetime.fromtimestamp(published, UTC))


def test_versions_are_listed_by_name_and_time(store: Store) -> None:
    newest = _version(store, "toys", "aa", 3000)
    other = _version(store, "abc", "ab", 4000)
    first, second = _version(store, "toys", "cc", 1000), _version(store, "toys", "bb", 2000)
    store.write("datasets/toys/encoded/aa.json", b"{}")
    store.write("datasets/toys/aa/origin.json", b"{}")
    store.write("datasets/toys/manifest.json", b"{}")
    assert versions(store) == [other, first, second, newest]
    assert versions(store, "toys") == [first, second, newest]
    assert versions(store, "toy") == []


def test_a_version_is_found_by_its_dataset_or_the_beginning_of_its_id(store: Store) -> None:
    """A dataset's name is its newest version, also if it could be the beginning of an id."""
    newest, older = _version(store, "toys", "a1", 2000), _version(store, "toys", "ab", 1000)
    oldest, named = _version(store, "toys", "cd", 500), _version(store, "abc", "abcd", 3000)
    addresses = {given: address(given, store.uri) for given in ("toys", "abc", "a1", "abcd", "c")}
    assert addresses == {
        "toys": newest.uri,
        "abc": named.uri,
        "a1": newest.uri,
        "abcd": named.uri,
        "c": oldest.uri,
    }
    assert address("s3://elsewhere/manifest.json", store.uri) == "s3://elsewhere/manifest.json"
    with pytest.raises(DatasetError, match="more than one version starts with ab in ") as caught:
        address("ab", store.uri)
    assert caught.value.seen == f"{named.uri}, {older.uri}"
    for unknown in ("ff", "balls", "Toys", "manifest.json"):
        with pytest.raises(
            DatasetError, match=f"no dataset has the name {unknown}, and no version"
        ) as caught:
            address(unknown, store.uri)
        assert caught.value.seen == "versions in the store: 4"


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ({"schema": 1, "location": "/data", "table": "/t", "more": 1}, {"location": "/data", "table": "/t"}),
        ({"schema": 1, "location": "/data", "table": ""}, {"location": "/data"}),
        ({"location": 5}, {"location": "5"}),
        ({"schema": -1, "location": "/data"}, {}),
        ([], {}),
    ],
    ids=str,
)
def test_where_the_raw_data_lay_is_known_if_somebody_recorded_it(
    recorded: object, found: dict[str, str], store: Store
) -> None:
    manifest = a_manifest()
    assert origin(manifest, store) == {}
    written(store, manifest)
    store.write(f"datasets/toys/{manifest.dataset_id}/origin.json", json.dumps(recorded).encode())
    assert origin(manifest, store) == found


def test_a_newer_record_of_where_the_raw_data_lay_is_named(store: Store) -> None:
    manifest = a_manifest()
    store.write(f"datasets/toys/{manifest.dataset_id}/origin.json", b'{"schema": 2}')
    with pytest.raises(NewerFormat, match=f"{manifest.dataset_id}/origin.json"):
        origin(manifest, store)


def test_nothing_of_a_removed_version_stays(store: Store) -> None:
    manifest = a_manifest()
    uri = written(store, manifest)
    store.write(f"datasets/toys/{manifest.dataset_id}/origin.json", b"{}")
    remove(uri)
    assert list(store.list()) == []
    with pytest.raises(NoSuchObject) as caught:
        remove(uri)
    assert caught.value.which == uri
