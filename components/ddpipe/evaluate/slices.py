"""Slices of a split: from a table of columns to scores, and what an evaluation publishes besides the whole.

A row belongs to the sample whose id or file it names, as `ddpipe.sources.listing.FileNames` compares them.
Samples without a row, and blank cells, are slices of their own: what is unknown is shown, not left out. A
column of numbers with many values, such as an age, is divided at its quartiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from ddpipe.data.index import open_index
from ddpipe.data.manifest import SPLITS, DatasetManifest, printable
from ddpipe.data.versions import origin
from ddpipe.errors import ParameterError
from ddpipe.evaluate.resampling import intervals
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.evaluation import Evaluation, Metrics, Subject, publish
from ddpipe.model.metrics import METRICS, Answers
from ddpipe.model.slices import FILE, SliceScore, Slicing
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray, IntArray, Task
from ddpipe.sources.listing import FileNames
from ddpipe.sources.table import names_files, parsed
from ddpipe.storage import Store, read_uri

MOST_VALUES = 20  # slices of a column: the rarest values of one that has more are combined
LONGEST = 60  # characters of a value
BLANK, NO_ROW, OTHERS = "(blank)", "(not in the table)", "(other values)"

QUARTERS = (25, 50, 75)

Cells = Mapping[str, str]


def sliced(spec: EvaluateSpec, sample_ids: Sequence[str], others: Iterable[str] = ()) -> Slicing:
    """Which slice each sample is in; `others` are the samples of other splits, which a table may name."""
    names = FileNames(chain(sample_ids, others))
    cells = _matched(sample_ids, rows_of(spec, names), names)
    names.warn_of_respelled(spec.slice_table)
    if not any(cells):
        raise _unusable(spec, f"no column names the samples, such as {sample_ids[0]!r}")
    columns = [_column([row[name] if row else NO_ROW for row in cells]) for name in spec.slice_columns]
    return Slicing(
        tuple((name, values) for name, (values, _) in zip(spec.slice_columns, columns, strict=True)),
        np.stack([codes for _, codes in columns]).astype(np.int16),
    )


def sliced_version(spec: EvaluateSpec, split: str, manifest: DatasetManifest, store: Store) -> Slicing:
    """The same for a split of a version, by default with the table that the version was made from."""
    table = spec.slice_table or origin(manifest, store).get("table", "")
    if not table:
        raise ParameterError(
            what=EvaluateSpec.what,
            which="`slice_columns`",
            seen=f"no table was given, and the dataset {manifest.name} was not made from one",
            do="Name the table with `slice_table`.",
        )
    ids = {name: open_index(manifest, name, store).sample_ids for name in SPLITS}
    others = chain.from_iterable(ids[name] for name in SPLITS if name != split)
    return sliced(replace(spec, slice_table=table), list(ids[split]), others)


def rows_of(spec: EvaluateSpec, names: FileNames | None = None) -> dict[str, Cells]:
    """The rows of the table by what they name, in the first column that has one of the names."""
    header, rows = parsed(spec.slice_table, read_uri(spec.slice_table))
    if missing := [repr(name) for name in spec.slice_columns if name not in header]:
        raise _unusable(spec, f"it has no column {', '.join(missing)}; it has {', '.join(header)}")
    image = next((one for one in header if names and names_files(rows, one, names)), header[0])
    found: dict[str, Cells] = {}
    for row in rows:
        name = row.cells.get(image, "")
        if row.width != len(header):
            raise _unusable(spec, f"line {row.line} does not have the {len(header)} cells of the header")
        if not name or name in found:
            seen = f"repeats {name!r} of an earlier line" if name else "names no image"
            raise _unusable(spec, f"line {row.line} {seen}")
        found[name] = row.cells
    return found


def _matched(sample_ids: Sequence[str], rows: Mapping[str, Cells], names: FileNames) -> list[Cells | None]:
    """The row of each sample; a name that several samples have belongs to none of them."""
    places = {one: place for place, one in enumerate(sample_ids)}
    cells: list[Cells | None] = [None] * len(sample_ids)
    for name, row in rows.items():
        mine = [places[key] for key in names.match(name) if key in places]
        if len(mine) == 1 and (cells[mine[0]] is None or name in places):
            cells[mine[0]] = row
    return cells


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
        which=f"`slice_table` {spec.slice_table}",
        seen=seen,
        do="Give a CSV file that names the images as the dataset does, each once, and has the columns of "
        "`slice_columns`.",
    )


def slice_scores(
    slicing: Slicing, answers: Answers, task: Task, name: str, groups: IntArray | None = None
) -> tuple[SliceScore, ...]:
    """The score of each slice, averages beside the split's over its classes; `groups`: shape (samples,)."""
    metric = METRICS[name]

    def scored(column: str, value: str, mask: BoolArray) -> SliceScore:
        known = _known_classes(answers.of_samples(mask), task)
        some = answers if known.all() or metric.is_share else answers.of_classes(known)
        own = some.of_samples(mask)
        found = metric.of(own) if mask.any() and known.any() else float("nan")
        exists = bool(np.isfinite(found))
        together = None if groups is None else groups[mask]
        low, high = intervals(own, [name], together)[name] if exists else (None, None)
        return SliceScore(
            column=column,
            value=value,
            samples=int(mask.sum()),
            score=found if exists else None,
            low=low,
            high=high,
            whole=metric.of(some) if exists else None,
            classes=len(known) if metric.is_share else int(known.sum()),
        )

    return tuple(scored(*one) for one in slicing.each())


def _known_classes(answers: Answers, task: Task) -> BoolArray:
    """The classes by which a slice can be judged: that some of its samples show, and for labels not all."""
    counts = answers.truth.sum(axis=0)
    most = len(answers.truth) if task.exclusive else len(answers.truth) - 1
    known: BoolArray = (counts > 0) & (counts <= most)
    return known


def publish_sliced(
    store: Store,
    subject: Subject,
    metrics: Metrics,
    logits: FloatArray,
    labels: IntArray,
    slicing: Slicing | None = None,
    groups: IntArray | None = None,
) -> Evaluation:
    """Publish an evaluation with its slices; logits, shape (samples, classes), are not yet scaled."""
    if not slicing:
        return publish(store, subject, metrics, logits, labels)
    task, scaled = TASKS[metrics.task], logits / np.float32(metrics.temperature)
    answers = Answers.of(task, scaled, labels, metrics.thresholds)
    metrics = replace(metrics, slices=slice_scores(slicing, answers, task, metrics.headline, groups))
    return publish(store, subject, metrics, logits, labels, {FILE: slicing.to_bytes()})
