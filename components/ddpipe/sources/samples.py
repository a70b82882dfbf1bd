"""The samples of a source as columns: a million objects would need too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.columns import PIECE, Columns, Rows, Text, batched, text
from ddpipe.sources.sample import Sample


@dataclass(frozen=True, slots=True)
class Samples(Columns):
    """Samples by number; the columns are the attributes of `Sample`, multilabel ones (samples, classes)."""

    ids: Text
    labels: NDArray[np.int64]
    stamps: Text
    wheres: Text
    groups: Text
    splits: Text

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Samples:
        """Columns of samples that a source yields one by one."""
        pieces = [
            cls(
                text(sample.id for sample in piece),
                np.array([sample.label for sample in piece], np.int64),
                text(sample.stamp for sample in piece),
                text(sample.where for sample in piece),
                text(sample.group for sample in piece),
                text(sample.split for sample in piece),
            )
            for piece in batched(samples)
        ]
        return cls.joined(pieces) if pieces else cls(text([]), np.empty(0, np.int64), *4 * [text([])])

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), PIECE):
            part = self.take(slice(start, start + PIECE))
            for name, label, *others in zip(*(column.tolist() for column in part.columns()), strict=True):
                shown = tuple(label) if isinstance(label, list) else label
                stamp, where, group, split = (item.decode() for item in others)
                yield Sample(name.decode(), shown, stamp, where, group, split)

    @property
    def units(self) -> Text:
        """What stays in one split: the group of each sample, or its id."""
        return np.where(self.groups == b"", self.ids, self.groups)


class Finder:
    """Finds samples by their ids."""

    def __init__(self, ids: Text) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]

    def rows(self, ids: Text) -> Rows:
        """The row of each id; -1 where no sample has it."""
        if not len(self._sorted):
            return np.full(len(ids), -1)
        places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[places] == ids, self._order[places], -1)
