"""Columns of many rows: text as bytes, in pieces that are Python objects at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pytest

from ddpipe.data.columns import PIECE, Columns, Strings, Text, batched, hashes, text, trimmed

NAMES = [f"número {number}" for number in range(2 * PIECE + 3)]
COLUMN = text(NAMES)


@dataclass(frozen=True)
class Rows(Columns):
    """Two columns of one length."""

    names: Text
    labels: np.ndarray


def test_a_column_of_several_pieces_has_all_its_strings() -> None:
    strings = Strings(COLUMN)
    assert len(strings) == len(NAMES)
    assert list(strings) == NAMES
    assert strings[PIECE] == NAMES[PIECE]
    assert list(strings[PIECE - 1 : PIECE + 2]) == NAMES[PIECE - 1 : PIECE + 2]


def test_a_column_of_nothing_is_one() -> None:
    assert (text([]).dtype, text([]).shape) == (np.dtype("S1"), (0,))
    assert list(Strings(text([]))) == []
    assert hashes(text([])).shape == (0,)


def test_each_string_has_a_hash_of_its_own_and_others_with_a_key() -> None:
    found = hashes(COLUMN)
    assert found.dtype == np.uint64
    for row in (0, PIECE - 1, PIECE, len(NAMES) - 1):
        digest = blake2b(NAMES[row].encode(), digest_size=8).digest()
        assert found[row] == int.from_bytes(digest, "little")
    assert len(np.unique(found)) == len(NAMES)
    assert not (found == hashes(COLUMN, b"another")).any()


@pytest.mark.parametrize(("names", "width"), [(["a", "bcd"], 3), (["", ""], 1), ([], 1)], ids=repr)
def test_a_trimmed_column_is_as_wide_as_its_longest_string(names: list[str], width: int) -> None:
    wide = text([*names, "much wider than that"])[: len(names)]
    assert trimmed(wide).dtype == np.dtype(f"S{width}")
    assert list(Strings(trimmed(wide))) == names


@pytest.mark.parametrize(
    "rows", [np.array([4, 0]), np.array([True, False, False, False, True]), slice(0, 5, 4)], ids=repr
)
def test_rows_are_taken_from_all_columns(rows: np.ndarray | slice) -> None:
    whole = Rows(text("abcde"), np.arange(5))
    taken = whole.take(rows)
    assert (len(whole), len(taken)) == (5, 2)
    assert sorted(zip(Strings(taken.names), taken.labels.tolist(), strict=True)) == [("a", 0), ("e", 4)]


def test_parts_are_joined_in_their_order() -> None:
    joined = Rows.joined([Rows(text("ab"), np.arange(2)), Rows(text(["longer"]), np.array([9]))])
    assert list(Strings(joined.names)) == ["a", "b", "longer"]
    assert joined.labels.tolist() == [0, 1, 9]


def test_batches_are_full_but_the_last() -> None:
    assert list(batched(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batched(range(6), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert [len(batch) for batch in batched(range(PIECE + 1))] == [PIECE, 1]
