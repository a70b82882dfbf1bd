"""Columns: arrays with one row per sample, as a million samples are too much for objects.

Text is UTF-8 of one width, padded with zero bytes (numpy's `S`), so that sorting, searching and comparing run
in numpy. A column by itself is kept as .npy: one call maps it into memory, all processes of a machine share
its pages, its header is bounded, and it cannot hold code. Arrow would give the same, for 40 MB of library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from hashlib import blake2b
from itertools import islice
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Text = NDArray[np.bytes_]  # UTF-8 in rows of one width
Rows = NDArray[np.int64]  # numbers of rows, shape (n,)
PIECE = 4096  # rows that are Python objects at the same time

T = TypeVar("T")


class Columns:
    """Base of frozen dataclasses whose fields are columns of one length."""

    def __len__(self) -> int:
        return len(self.columns()[0])

    def take(self, rows: Rows | NDArray[np.bool_] | slice) -> Self:
        """These rows: their numbers, a mask of shape (rows,), or a slice."""
        return type(self)(*(column[rows] for column in self.columns()))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate parts, of which there must be one."""
        return cls(*map(np.concatenate, zip(*(part.columns() for part in parts), strict=True)))

    def columns(self) -> list[NDArray[Any]]:
        """All of them, in the order of the fields, each of shape (rows, ...)."""
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]


class Strings(Sequence[str]):
    """A column of text as strings, each made when it is asked for."""

    def __init__(self, column: Text) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - a string, or of a slice a column
        if isinstance(place, slice):
            return Strings(self.column[place])
        return bytes(self.column[place]).decode()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), PIECE):
            for item in self.column[start : start + PIECE].tolist():
                yield item.decode()


def text(strings: Iterable[str]) -> Text:
    """A column of strings, of which none may end with a zero byte."""
    pieces = [np.array([item.encode() for item in piece], np.bytes_) for piece in batched(strings)]
    return np.concatenate(pieces) if pieces else np.empty(0, "S1")


def hashes(column: Text, key: bytes = b"") -> NDArray[np.uint64]:
    """A hash of each string, shape (rows,); another key gives others."""
    pieces = [
        b"".join(
            blake2b(one, digest_size=8, key=key).digest() for one in column[start : start + PIECE].tolist()
        )
        for start in range(0, len(column), PIECE)
    ]
    return np.frombuffer(b"".join(pieces), "<u8").astype(np.uint64)


def trimmed(column: Text) -> Text:
    """No wider than its longest string, so that equal strings give equal files."""
    return column.astype(f"S{max(1, np.char.str_len(column).max(initial=0))}", copy=False)


def batched(items: Iterable[T], size: int = PIECE) -> Iterator[list[T]]:
    """The items in lists of so many."""
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece
