"""Slices of a split: its samples by the values of columns of a table, such as the site of each image.

Each sample is in one slice of each column. An evaluation keeps which, so that the gate compares two models on
the same slices:

    <evaluation>/slices.npy     int16 (columns, samples): number of the sample's slice among its column's
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpipe.data import npy

FILE = "slices.npy"

FEWEST = 20  # images of a slice or class, below which its score says too little


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceScore:
    """How good a model is on one slice, by the score by which models of the task are compared."""

    column: str
    value: str
    samples: int
    score: float | None  # None where the slice defines none
    low: float | None  # lower end of its 95 % interval; None where resampling shows no spread
    high: float | None
    whole: float | None  # the same score of the whole split, over the same classes
    classes: int  # how many classes the score is over: those that the slice defines

    @property
    def name(self) -> str:
        """Column and value, for a sentence."""
        return f"{self.column} = {self.value}"

    @property
    def is_small(self) -> bool:
        """Whether its score says too little."""
        return self.samples < FEWEST

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is below the score of the whole split, in enough images to say so."""
        return not self.is_small and None not in {self.high, self.whole} and self.high < self.whole  # type: ignore[operator]


def worst_first(slices: Sequence[SliceScore]) -> list[SliceScore]:
    """By what they lack to the whole split; small slices, and those without a score, come last."""

    def lack(one: SliceScore) -> float:
        return 0.0 if one.score is None or one.whole is None else one.whole - one.score

    return sorted(slices, key=lambda one: (one.score is None, one.is_small, -lack(one)))


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slices of each column; `codes`, shape (columns, samples), index the values of a column."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    codes: npt.NDArray[np.int16]

    def each(self) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
        """Column, value, and which samples the slice has, shape (samples,)."""
        for (column, values), codes in zip(self.columns, self.codes, strict=True):
            for number, value in enumerate(values):
                yield column, value, codes == number

    def to_bytes(self) -> bytes:
        """The codes, as a file."""
        return npy.to_bytes(self.codes)


def slicing_of(slices: Sequence[SliceScore], data: bytes, samples: int) -> Slicing:
    """The slices of an evaluation, from its scores and the file of codes."""
    values: dict[str, tuple[str, ...]] = {}
    for one in slices:
        values[one.column] = (*values.get(one.column, ()), one.value)
    codes = npy.array_in(data)
    if codes.dtype != np.int16 or codes.shape != (len(values), samples):
        raise ValueError(f"it is {codes.dtype} {codes.shape}, not int16 {(len(values), samples)}")
    counts = [len(one) for one in values.values()]
    if any(
        row.min(initial=0) < 0 or row.max(initial=0) >= count
        for row, count in zip(codes, counts, strict=True)
    ):
        raise ValueError("it names a slice that has no score")
    return Slicing(tuple(values.items()), codes)
