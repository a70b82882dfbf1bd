"""A table of columns -> which slice of a split each sample is in, without torch.

A row belongs to the sample whose id is its first cell, or the name of the sample's file, with or without
ending. Samples without a row, and blank cells, are slices of their own: what is unknown is shown, not left
out. A column of numbers with many values, such as an age, is divided at its quartiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import PurePosixPath

import numpy as np

from ddpipe.data.names import printable
from ddpipe.errors import ParameterError
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.slices import Slicing
from ddpipe.model.tasks import IntArray
from ddpipe.sources.csv_file import parsed
from ddpipe.spelling import option
from ddpipe.storage import read_uri

MOST_VALUES = 20
"""Slices of a column: the rarest values of one that has more are combined."""

LONGEST = 60
"""Characters of a value."""

BLANK, NO_ROW, OTHERS = "(blank)", "(not in the table)", "(other values)"

QUARTERS = (25, 50, 75)

Cells = Mapping[str, str]


def sliced(spec: EvaluateSpec, sample_ids: Sequence[str]) -> Slicing:
    """Which slice each sample is in."""
    cells = _matched(sample_ids, rows_of(spec))
    if not any(cells):
        raise _unusable(spec, f"its first column names none of the samples, such as {sample_ids[0]!r}")
    columns = [_column([row[name] if row else NO_ROW for row in cells]) for name in spec.slice_columns]
    return Slicing(
        tuple((name, values) for name, (values, _) in zip(spec.slice_columns, columns, strict=True)),
        np.stack([codes for _, codes in columns]).astype(np.int16),
    )


def rows_of(spec: EvaluateSpec) -> dict[str, Cells]:
    """The rows of the table by the image that they name."""
    header, rows = parsed(spec.slice_table, read_uri(spec.slice_table))
    if missing := [repr(name) for name in spec.slice_columns if name not in header]:
        raise _unusable(spec, f"it has no column {', '.join(missing)}; it has {', '.join(header)}")
    found: dict[str, Cells] = {}
    for row in rows:
        name = row.cells.get(header[0], "")
        if row.width != len(header):
            raise _unusable(spec, f"line {row.line} does not have the {len(header)} cells of the header")
        if not name or name in found:
            seen = f"repeats {name!r} of an earlier line" if name else "names no image"
            raise _unusable(spec, f"line {row.line} {seen}")
        found[name] = row.cells
    return found


def _matched(sample_ids: Sequence[str], rows: Mapping[str, Cells]) -> list[Cells | None]:
    """The row of each sample; a name that several samples have belongs to none of them."""
    files = [PurePosixPath(one) for one in sample_ids]
    names = [{one, *_shorter(file)} for one, file in zip(sample_ids, files, strict=True)]
    shared = Counter(chain.from_iterable(names))

    def row_of(sample_id: str, file: PurePosixPath) -> Cells | None:
        known = [sample_id, *(name for name in _shorter(file) if shared[name] == 1)]
        return next((rows[name] for name in known if name in rows), None)

    return list(map(row_of, sample_ids, files))


def _shorter(file: PurePosixPath) -> tuple[str, ...]:
    """What a table may call a file, the longest first: without ending, without folder, without both."""
    return (str(file.with_suffix("")), file.name, file.stem) if file.name else ()


def _column(cells: Sequence[str]) -> tuple[tuple[str, ...], IntArray]:
    """The values of a column's slices, and the number of each cell's among them, shape (samples,)."""
    shown = [printable(cell) or cell or BLANK for cell in cells]
    shown = _in_quarters(shown) if len(set(shown)) > MOST_VALUES else shown
    commonest = [value for value, _ in Counter(shown).most_common()]
    kept = sorted(commonest if len(commonest) <= MOST_VALUES else commonest[: MOST_VALUES - 1])
    values = kept if len(kept) == len(commonest) else [*kept, OTHERS]
    numbers = {value: number for number, value in enumerate(values)}
    codes = np.array([numbers.get(value, len(values) - 1) for value in shown], np.int64)
    return _abridged(values), codes


def _in_quarters(cells: list[str]) -> list[str]:
    """Ranges between the quartiles in place of numbers; the cells themselves if one of them is no number."""
    numbers = {cell: number for cell in set(cells) - {BLANK, NO_ROW} if (number := _number(cell)) is not None}
    if len(numbers) < len(set(cells) - {BLANK, NO_ROW}):
        return cells
    known = np.array([numbers[cell] for cell in cells if cell in numbers])
    edges = np.unique(np.percentile(known, QUARTERS, method="lower"))
    bounds = [f"{edge:.15g}" for edge in edges]
    between = [f"over {lower} to {upper}" for lower, upper in pairwise(bounds)]
    ranges = [f"up to {bounds[0]}", *between, f"over {bounds[-1]}"]
    return [ranges[int(np.searchsorted(edges, numbers[cell]))] if cell in numbers else cell for cell in cells]


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _abridged(values: Sequence[str]) -> tuple[str, ...]:
    """Values short enough to be shown, and still different."""
    short = [value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…" for value in values]
    counts = Counter(short)
    return tuple(
        value if counts[value] == 1 else f"{value} ({number})" for number, value in enumerate(short, 1)
    )


def _unusable(spec: EvaluateSpec, seen: str) -> ParameterError:
    return ParameterError(
        what=EvaluateSpec.what,
        which=f"{option('slice_table')} {spec.slice_table}",
        seen=seen,
        do="Give a CSV file whose first column names the images as the dataset does, each once, and has "
        f"the columns of {option('slice_columns')}.",
    )
