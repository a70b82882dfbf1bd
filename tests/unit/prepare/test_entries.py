"""The ledger of prepare: entries come back as they were written, and nothing else is taken for one."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpipe.data.columns import text
from ddpipe.data.manifest import ShardRef
from ddpipe.prepare import entries
from ddpipe.prepare.entries import Entry, Members, decoded, encoded

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)


@st.composite
def some_entries(draw: st.DrawFn) -> Entry:
    ids = draw(st.lists(NAMES, min_size=1, max_size=20))
    count, width = len(ids), draw(st.sampled_from([3, 7]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    members = Members(
        ids=text(ids),
        stamps=text(draw(st.lists(NAMES, min_size=count, max_size=count))),
        sha256=random.integers(0, 256, (count, 32), np.uint8).view("S32").ravel(),
        shapes=random.integers(1, 2**32, (count, 3), np.uint32),
        depths=random.integers(0, 17, count, np.uint8),
        moments=random.integers(0, 2**64, (count, width), np.uint64),
        phashes=text(draw(st.sampled_from(["", "0f" * 32])) for _ in range(count)),
    )
    return Entry(ShardRef("a" * 64, 1000, count), {"kind": "raw", "shape": [8, 8, 1]}, members)


def _same(one: Entry, other: Entry) -> bool:
    pairs = zip(one.members.columns(), other.members.columns(), strict=True)
    same = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
    return same and (one.shard, one.encoding) == (other.shard, other.encoding)


@given(some_entries())
def test_an_entry_comes_back_and_always_gives_the_same_bytes(entry: Entry) -> None:
    found = decoded(encoded(entry))
    assert found is not None
    assert _same(found, entry)
    assert encoded(found) == encoded(entry)


@given(some_entries(), st.data())
def test_a_damaged_entry_is_refused_or_the_same(entry: Entry, data: st.DataObject) -> None:
    """Never something else; gzip's checksum sees to it."""
    content = bytearray(encoded(entry))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        try:
            found = decoded(damaged)
        except entries.DAMAGED:
            continue
        assert found is not None
        assert _same(found, entry)


def _packed(entry: Entry, **changes: Any) -> bytes:
    """An entry with other parts."""
    with np.load(io.BytesIO(gzip.decompress(encoded(entry)))) as arrays:
        parts = {name: arrays[name] for name in arrays.files} | changes
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    return gzip.compress(buffer.getvalue())


ONE = Entry(
    ShardRef("a" * 64, 1000, 1),
    {},
    Members(
        *(text(["a"]), text(["b"]), np.array([b"c"], entries.DIGEST)),
        *(np.ones((1, 3), np.uint32), np.ones(1, np.uint8), np.ones((1, 3), np.uint64), text([""])),
    ),
)


@pytest.mark.parametrize("name", [field.name for field in fields(Members)])
def test_columns_of_another_length_or_type_and_pickles_are_refused(name: str) -> None:
    for column in (np.ones(2, np.uint8), np.ones(1), np.array([print], dtype=object)):
        with pytest.raises(entries.DAMAGED):
            decoded(_packed(ONE, **{name: column}))


def test_an_entry_of_another_schema_is_none_of_ours() -> None:
    facts = np.frombuffer(json.dumps({"schema": entries.SCHEMA + 1}).encode(), np.uint8)
    assert decoded(_packed(ONE, facts=facts)) is None


def test_an_entry_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "LARGEST", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        decoded(encoded(replace(ONE)))


@pytest.mark.parametrize(
    "shard",
    [
        {"sha256": "../../x", "bytes": 1, "count": 1},
        {"sha256": "a" * 64, "bytes": 1, "count": 1, "kind": "../x"},
        {"sha256": "a" * 64, "bytes": "1", "count": 1},
        {"sha256": "a" * 64, "bytes": 1, "count": 1, "more": 1},
    ],
    ids=str,
)
def test_an_entry_names_no_file_outside_the_shards(shard: dict[str, Any]) -> None:
    facts = {"schema": entries.SCHEMA, "shard": shard, "encoding": {}}
    with pytest.raises(entries.DAMAGED):
        decoded(_packed(ONE, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8)))


@pytest.mark.parametrize(
    "changes",
    [
        {"shapes": np.ones((1, 2), np.uint32)},
        {"moments": np.ones(1, np.uint64)},
        {"ids": np.array([[b"a"]])},
        {"facts": np.frombuffer(b"[" * 9999, np.uint8)},
    ],
    ids=["shapes", "moments", "ids", "facts"],
)
def test_columns_of_other_shapes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(entries.DAMAGED):
        decoded(_packed(ONE, **changes))
