"""Predictions as CSV and as Parquet, written while they are made: a few thousand rows are in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from ddpipe.serve.prediction import Prediction, header

ROWS = 5_000
"""Of a row group."""

CSV, PARQUET = "predictions.csv", "predictions.parquet"


def written(predictions: Iterable[Prediction], classes: Sequence[str], folder: Path) -> Iterator[Prediction]:
    """The same predictions, each of which is in both files when the last one was taken."""
    schema = _schema(classes)
    waiting: list[dict[str, Any]] = []
    with (
        (folder / CSV).open("w", encoding="utf-8", newline="") as text,
        parquet.ParquetWriter(folder / PARQUET, schema) as rows,
    ):
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(header(classes))
        for one in predictions:
            lines.writerow(one.to_row(classes))
            waiting.append(_row(one, classes))
            if len(waiting) == ROWS:
                rows.write_table(pa.Table.from_pylist(waiting, schema))
                waiting.clear()
            yield one
        rows.write_table(pa.Table.from_pylist(waiting, schema))


def _schema(classes: Sequence[str]) -> pa.Schema:
    """The probabilities are one column of their own, so that a class may have any name."""
    return pa.schema(
        [
            ("image", pa.string()),
            ("answer", pa.list_(pa.string())),
            ("probabilities", pa.struct([(name, pa.float32()) for name in classes])),
            ("warnings", pa.list_(pa.string())),
            ("problem", pa.string()),
        ]
    )


def _row(one: Prediction, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "image": one.image,
        "answer": list(one.answer),
        "probabilities": {name: one.probabilities[name] for name in classes} if one.probabilities else None,
        "warnings": list(one.warnings),
        "problem": one.problem or None,
    }
