"""A sealed folder is seen whole and as it was published, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ddpipe.errors import CorruptObject, NewerFormat
from ddpipe.storage import Store, open_store
from ddpipe.storage.sealed import Format, to_json

PARCEL = Format(kind="parcel", seal="parcel.json", schema=3, maker="ddpipe pack")
FILES = {"a.txt": b"one", "b/c.bin": bytes(range(9))}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_what_was_sealed_is_read(store: Store) -> None:
    published = PARCEL.publish(store, FILES, {"sender": "me"})
    opened = PARCEL.open(store.uri)
    assert opened.facts == published.facts == {"sender": "me"}
    assert {key: opened.read(key) for key in opened.sha256} == FILES
    assert published.sha256 == opened.sha256


def test_a_changed_file_is_not_read(store: Store) -> None:
    folder = PARCEL.publish(store, FILES, {})
    store.write("a.txt", b"two")
    assert folder.read("b/c.bin") == FILES["b/c.bin"]
    with pytest.raises(CorruptObject, match="changed after it was published") as caught:
        folder.read("a.txt")
    assert caught.value.which == f"{store.uri}/a.txt"
    assert folder.sha256["a.txt"] in caught.value.seen


def test_a_file_that_the_seal_does_not_name_is_not_read(store: Store) -> None:
    folder = PARCEL.publish(store, FILES, {})
    store.write("c.txt", b"more")
    with pytest.raises(CorruptObject, match="the seal says nothing"):
        folder.read("c.txt")


def _contents(store: Store) -> dict[str, bytes]:
    opened = PARCEL.open(store.uri)
    return {key: opened.read(key) for key in opened.sha256}


@pytest.mark.parametrize("number", range(20))
def test_a_writer_that_dies_over_an_older_folder_leaves_one_of_them(
    number: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before each of its changes; the next writer cleans up."""
    PARCEL.publish(store, FILES, {})
    newer, newest = FILES | {"a.txt": b"two"}, {"a.txt": b"three", "d.txt": b"more"}
    changes = 0

    def dying(method: Callable[..., None]) -> Callable[..., None]:
        def one(*given: object) -> None:
            nonlocal changes
            changes += 1
            if changes > number:
                raise OSError(28, "No space left on device")
            method(*given)

        return one

    with monkeypatch.context() as patched, suppress(OSError):
        for name in ("write", "delete"):
            patched.setattr(type(store), name, dying(getattr(type(store), name)))
        PARCEL.publish(store, newer, {})
    assert changes == min(number + 1, 9)
    assert _contents(store) == (newer if number >= 3 else FILES)
    PARCEL.publish(store, newest, {})
    assert _contents(store) == newest
    assert json.loads(store.read(PARCEL.seal))["sha256"].keys() == newest.keys()
    assert not list(store.list(".next/"))


@pytest.mark.parametrize(
    "seal",
    [
        b"{",
        b"[]",
        b'{"schema": 3}',
        b'{"schema": 3, "facts": {}}',
        b'{"schema": 3, "facts": [1], "sha256": {}}',
        b'{"schema": 3, "facts": {}, "sha256": 7}',
    ],
)
def test_a_damaged_seal_is_reported(seal: bytes, store: Store) -> None:
    store.write(PARCEL.seal, seal)
    with pytest.raises(CorruptObject, match="seal of this parcel is damaged") as caught:
        PARCEL.open(store.uri)
    assert caught.value.seen.endswith(")")
    assert caught.value.which.endswith("/parcel.json")


def test_a_folder_of_another_schema_is_reported(store: Store) -> None:
    Format("parcel", "parcel.json", 4, "ddpipe pack").publish(store, FILES, {})
    with pytest.raises(NewerFormat, match="its schema is 4, this ddpipe reads 3"):
        PARCEL.open(store.uri)


def test_a_person_can_read_the_seal_and_any_program_too(store: Store) -> None:
    PARCEL.publish(store, FILES, {"sender": "me"})
    lines = store.read(PARCEL.seal).decode().splitlines()
    assert ' "schema": 3,' in lines
    assert json.loads("".join(lines))["facts"] == {"sender": "me"}
    with pytest.raises(ValueError, match="JSON"):
        to_json({"loss": float("nan")})
