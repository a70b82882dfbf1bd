"""A CSV file as rows: its encoding and separator are detected, and an ambiguous file is rejected."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from unicodedata import category

from ddpipe.data.names import printable
from ddpipe.sources.base import refused

SEPARATORS = ",;\t|"

SPACES = "\t" + "".join(char for char in map(chr, range(0x3001)) if category(char) == "Zs")
"""What may surround a cell; a line's end may not: it would hide rows that a missing quote has swallowed."""

QUOTED = re.compile(r'(?<![^,;\t|])"(?:[^"]|"")*+"')
"""A cell in quotes, after any separator."""

HEADER = re.compile(rf"(?:{QUOTED.pattern}|[^\r\n])*+")


class Row(NamedTuple):
    """One row of a table.

    Attributes:
        line: Of the file, where the row starts.
        width: How many cells it has.
        cells: By the names of their columns; none if the row is of another width than the header.
    """

    line: int
    width: int
    cells: Mapping[str, str]


def _text(file: str, data: bytes) -> str:
    """UTF-8, with or without its mark; UTF-16 with its mark; else Windows-1252."""
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            if not data.decode(errors="ignore").isascii():
                raise
            return data.decode("cp1252")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        seen = f"line {line} is not valid {error.encoding}: {error.reason} (byte {error.start} of the file)"
        raise refused(file, seen, "Save it as UTF-8.") from error


def _separator(text: str) -> str:
    """The separator that is most frequent between the names of the columns."""
    first = HEADER.match(text.lstrip("\r\n"))
    return max(SEPARATORS, key=QUOTED.sub("", first[0] if first else "").count)


def parsed(file: str, data: bytes) -> tuple[Sequence[str], list[Row]]:
    """The names of the columns, and the rows that are not empty."""
    text = _text(file, data)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    records: list[tuple[int, list[str]]] = []
    line = 1
    try:
        for record in reader:
            cells = [cell.strip(SPACES) for cell in record]
            if any(cells):
                records.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        seen = f"it is not a valid CSV table: {error} (the row from line {line} on)"
        raise refused(file, seen, "Correct this row, or save the table as CSV again.") from error
    header = records[0][1] if records else []
    names = [name for name in header if name]
    if len(records) < 2 or len(set(names)) < 2 or len(set(names)) < len(names):  # noqa: PLR2004
        seen = f"it has {max(0, len(records) - 1)} rows and the columns {', '.join(names) or 'none'}"
        raise refused(file, seen, "Give the table at least two columns, each with a unique name.")
    if garbled := [shown for name in names if (shown := printable(name))]:
        seen = f"the names of its columns have control characters: {', '.join(garbled)}"
        raise refused(file, seen, "Save it as UTF-8.")
    return header, [
        Row(line, len(cells), dict(zip(header, cells, strict=True)) if len(cells) == len(header) else {})
        for line, cells in records[1:]
    ]
