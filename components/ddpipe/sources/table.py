"""Labels from a CSV file: one column of classes, or several of 0 and 1."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from unicodedata import category

from ddpipe.data.manifest import SPLITS, Label, printable
from ddpipe.errors import NoSuchObject, listed
from ddpipe.sources.base import (
    ENDINGS,
    Survey,
    Table,
    as_class,
    error_for_source,
    sorted_out,
    split_called,
    store_of,
)
from ddpipe.sources.listing import FileNames, listed_files, read_file, stamp
from ddpipe.sources.sample import Sample
from ddpipe.storage import ObjectInfo, read_uri

log = logging.getLogger(__name__)

UNLABELLED = frozenset({"", "nan", "na", "null", "none"})  # what stands for a missing label, in any case

BINARY: Mapping[str, int] = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}

UNCERTAIN = frozenset({"-1", "-1.0"})  # what a report calls uncertain, as in CheXpert and MIMIC-CXR


LABEL_NAMES = frozenset({"label", "labels", "class", "classes", "target", "category"})
"""What a column of labels is called, in any case."""

JOINING = "|;, "  # signs that join labels in a cell
ROWS = 50  # rows that are compared with the files, to see which column names them


@dataclass(frozen=True, slots=True)
class Csv:
    """Images below a folder or s3://bucket/prefix, and a CSV file."""

    path: str
    table: Table

    def survey(self) -> Survey:
        """Match the rows with the images; one error lists everything that is wrong with the file."""
        file, data = self._content()
        header, rows = parsed(file, data)
        listing = listed_files(self.path)
        found = {info.key: info for info in listing.infos}
        names = FileNames(found)
        _refuse_missing_header(file, header, names)
        columns = _named(file, header, rows, self.table, names)
        rows, columns = _separated(file, rows, columns)
        named = {name: _match(name, found, names) for row in rows if (name := row.cells.get(columns.image))}
        names.warn_of_respelled(self.table.file)
        rows, left_out = _chosen(file, rows, columns)
        places = {name: named[name] for row in rows if (name := row.cells.get(columns.image))}
        if problems := list(_problems(header, rows, columns, places)):
            raise error_for_source(file, listed(problems), _remedy(rows, columns))
        classes, task = _classes(rows, columns)
        numbers = {name: number for number, name in enumerate(classes)}
        missing = {name: place for name, place in places.items() if isinstance(place, str)}
        samples, unprintable = sorted_out(
            Sample(
                id=cells[columns.image],
                label=_label(cells, columns, numbers),
                stamp=stamp(place),
                where=place.key,
                group=cells[columns.group] if columns.group else "",
                split=split_called(cells[columns.split]) if columns.split else "",
            )
            for _, _, cells in rows
            if not isinstance(place := places[cells[columns.image]], str)
        )
        self._warn_of_unnamed(found, {place.key for place in named.values() if not isinstance(place, str)})
        return Survey(
            classes=classes,
            samples=samples,
            task=task,
            problems={**missing, **listing.problems, **unprintable},
            facts={"left_out": left_out} if left_out else {},
        )

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return read_file(self.path, sample.where)

    def _content(self) -> tuple[str, bytes]:
        """The CSV file: where it is, and what it holds."""
        name = self.table.file
        is_whole = "://" in name or name.startswith("/")
        places = [name] if is_whole else [f"{self.path.rstrip('/')}/{name}", name]
        for place in places:
            with suppress(NoSuchObject):
                return place, read_uri(place)
        store_of(self.path)  # which may be what is missing
        raise error_for_source(
            name, f"there is no {' and no '.join(places)}", "Name the CSV file with `table`."
        )

    def _warn_of_unnamed(self, found: Collection[str], used: set[str]) -> None:
        if unnamed := sorted(key for key in {*found} - used if not key.endswith(".csv")):
            log.warning(
                "%s files below %s are not named in %s and left out, such as %s",
                f"{len(unnamed):,}",
                self.path,
                self.table.file,
                unnamed[0],
            )


def _refuse_missing_header(file: str, header: Sequence[str], found: FileNames) -> None:
    """A first row that names an image would be lost, and its label would be a column's name."""
    if named := [name for name in header if name in found and name.lower().endswith(ENDINGS)]:
        raise error_for_source(
            file,
            f"it has no header: its first row names the image {named[0]!r}",
            "Put the names of the columns into a line above it, such as image,label.",
        )


def _named(file: str, header: Sequence[str], rows: Sequence[Row], wanted: Table, files: FileNames) -> Table:
    """The table with every column named."""
    names = [name for name in header if name]
    image = wanted.image or next((name for name in names if names_files(rows, name, files)), names[0])
    others = [name for name in names if name not in {image, wanted.group, wanted.split}]
    labels = wanted.labels
    if not labels and len(called := [name for name in others if name.casefold() in LABEL_NAMES]) == 1:
        labels = (called[0],)
    elif not labels and len(others) > 1:
        log.warning("the columns %s of %s are read as labels, of 0 and 1", ", ".join(others), file)
    if not wanted.labels and len(labels) == 1 and (left := [name for name in others if name not in labels]):
        log.warning("%s is read as the label of %s, and %s is not", labels[0], file, ", ".join(left))
    labels = labels or tuple(others)
    chosen = [name for name in (image, *labels, wanted.group, wanted.split) if name]
    missing = [name for name in chosen if name not in names]
    if missing or not labels:
        seen = f"it has no column {', '.join(map(repr, missing)) or 'of labels'}, only {', '.join(names)}"
        raise error_for_source(file, seen, "Name the columns that it has.")
    if repeated := [name for name, count in Counter(chosen).items() if count > 1]:
        seen = f"{', '.join(map(repr, repeated))} is given more than once, as image, label, group or split"
        raise error_for_source(file, seen, "Give each column one meaning.")
    return replace(wanted, image=image, labels=labels)


def names_files(rows: Sequence[Row], column: str, files: FileNames) -> bool:
    """Whether one of the first rows names a file in this column."""
    cells = (row.cells.get(column, "") for row in rows[:ROWS])
    return any(files.match(cell) for cell in cells if cell)


def _separated(file: str, rows: list[Row], columns: Table) -> tuple[list[Row], Table]:
    """Labels that one cell joins, such as edema|mass, as columns of 0 and 1; what they are is also said."""
    if len(columns.labels) > 1:
        return rows, columns
    (label,) = columns.labels
    values = {cell for row in rows if (cell := row.cells.get(label, "")).lower() not in UNLABELLED}
    for sign in JOINING:
        parts = {value: [part.strip(SPACES) for part in value.split(sign)] for value in values}
        counts = Counter(part for found in parts.values() for part in found)
        several = {part for found in parts.values() if len(found) > 1 for part in found}
        # Names such as "Doe, John" have parts, too, but these come in one combination.
        repeated = [part for part in several if counts[part] > 1]
        if not several or "" in counts or 2 * len(repeated) < len(several):
            continue
        if sign == " " and not several <= values:  # names have blanks, too: all parts have to be labels
            continue
        names = tuple(sorted(counts))
        if len(names) < 2 or {columns.image, columns.group, columns.split, label} & {*names}:  # noqa: PLR2004
            continue
        log.warning("%s of %s joins labels by %r: each is a label of its own", label, file, sign)
        for place, row in enumerate(rows):
            if row.cells:
                found = parts.get(row.cells[label])
                own = {name: "" if found is None else str(int(name in found)) for name in names}
                rows[place] = row._replace(cells={**row.cells, **own})
        return rows, replace(columns, labels=names)
    return rows, columns


def _chosen(file: str, rows: list[Row], columns: Table) -> tuple[list[Row], dict[str, int]]:
    """The rows that are used, and the number of those that are not, by reason."""
    if not columns.skip_unlabelled:
        return rows, {}
    kept = [row for row in rows if not _lacks_label(row, columns)]
    if not kept:
        raise error_for_source(file, "no row has a label", "Name the label columns with `label_columns`.")
    if not (count := len(rows) - len(kept)):
        return kept, {}
    log.warning("%s rows without a label of %s are left out, of %s in all", f"{count:,}", file, len(rows))
    return kept, {"rows without a label": count}


def _lacks_label(row: Row, columns: Table) -> bool:
    return any(row.cells.get(label, "?").lower() in UNLABELLED for label in columns.labels)


def _problems(
    header: Sequence[str], rows: Sequence[Row], columns: Table, places: Mapping[str, ObjectInfo | str]
) -> Iterator[str]:
    """What is wrong with the rows, each kind with its lines; images that can be skipped only among others."""
    named = {name: name if isinstance(place, str) else place.key for name, place in places.items()}
    counts = Counter(named[name] for row in rows if (name := row.cells.get(columns.image)))
    lines: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.width != len(header):
            lines[f"it has {row.width} cells, the header has {len(header)}"].append(row.line)
            continue
        name = named.get(row.cells[columns.image], "")
        if counts[name] > 1:
            lines[f"the image {name!r} is listed {counts[name]} times"].append(row.line)
        for problem in _in_cells(row.cells, columns):
            lines[problem].append(row.line)
    for row in rows if lines else ():
        if isinstance(place := places.get(row.cells.get(columns.image, "")), str):
            lines[place].append(row.line)
    for problem, where in lines.items():
        shown = ", ".join(map(str, where[:5])) + (" …" if len(where) > 5 else "")  # noqa: PLR2004
        yield f"{problem} (line{'s' if len(where) > 1 else ''} {shown}: {len(where)} in all)"
    if columns.split:
        parts = {split_called(row.cells.get(columns.split, "")) for row in rows}
        yield from (
            f"{columns.split!r} puts no row into {part}, and rows of the other splits may not go there"
            for part in ("train", "test")
            if part not in parts
        )


def _in_cells(cells: Mapping[str, str], columns: Table) -> Iterator[str]:
    """What is wrong with a row of the right width."""
    used = (columns.image, *columns.labels, columns.group, columns.split)
    for column in filter(None, used):
        if shown := printable(cells[column]):
            yield f"{column!r} is {shown!r}: it has control characters"
    if not cells[columns.image]:
        yield "the image is not named"
    if columns.group and not cells[columns.group]:
        yield f"{columns.group!r} is empty"
    if columns.split and not split_called(cells[columns.split]):
        yield f"{columns.split!r} is {cells[columns.split]!r}, not {', '.join(SPLITS)}"
    yield from _in_labels(cells, columns)


def _in_labels(cells: Mapping[str, str], columns: Table) -> Iterator[str]:
    several = len(columns.labels) > 1
    if several and any(cells[label] in UNCERTAIN for label in columns.labels):
        yield "a label is -1, uncertain"
    for label in columns.labels:
        value = cells[label]
        if value.lower() in UNLABELLED:
            yield f"{label!r} is {value!r}: no label"
        elif several and value not in BINARY and value not in UNCERTAIN:
            yield f"{label!r} is {value!r}, not 0 or 1"


def _remedy(rows: Sequence[Row], columns: Table) -> str:
    ways = ["Correct these rows"]
    found = {row.cells.get(label, "").lower() for row in rows for label in columns.labels}
    if len(columns.labels) > 1 and found - {*BINARY, *UNLABELLED, *UNCERTAIN}:
        ways.append(
            "`label_columns` names the columns of labels, `image_column` that of the "
            "images and `group_column` that of patients, if there are others"
        )
    if len(columns.labels) > 1 and found & UNCERTAIN:
        ways.append("write 0 or 1 for labels of -1, or leave their rows out of the table")
    if any(_lacks_label(row, columns) for row in rows):
        ways.append("`skip_bad` leaves out those without a label")
    return "; ".join(ways) + "."


def _classes(rows: Sequence[Row], columns: Table) -> tuple[tuple[str, ...], str]:
    if len(columns.labels) > 1:
        return columns.labels, "multilabel"
    return tuple(sorted({as_class(row.cells[columns.labels[0]]) for row in rows})), "multiclass"


def _label(cells: Mapping[str, str], columns: Table, numbers: Mapping[str, int]) -> Label:
    if len(columns.labels) > 1:
        return tuple(BINARY[cells[label]] for label in columns.labels)
    return numbers[as_class(cells[columns.labels[0]])]


def _match(name: str, found: Mapping[str, ObjectInfo], names: FileNames) -> ObjectInfo | str:
    """The one image of this name, or the problem."""
    keys = names.match(name)
    if len(keys) == 1:
        return found[keys[0]]
    if not keys:
        return "the table names this image, but it does not exist"
    return f"it could be {keys[0]} or {keys[1]}: give its path"


SEPARATORS = ",;\t|"

SPACES = "\t" + "".join(char for char in map(chr, range(0x3001)) if category(char) == "Zs")
"""What may surround a cell; a line's end may not: it would hide rows that a missing quote has swallowed."""

QUOTED = re.compile(r'(?<![^,;\t|])"(?:[^"]|"")*+"')  # a cell in quotes, after any separator
NAMED_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?\r?\n', re.IGNORECASE)  # the first line of tables for Excel

HEADER = re.compile(rf"(?:{QUOTED.pattern}|[^\r\n])*+")


class Row(NamedTuple):
    """A row from a line of the file on; no `cells` if it is of another width than the header."""

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
        raise error_for_source(file, seen, "Save it as UTF-8.") from error


def _separator(text: str) -> str:
    """The separator that is most frequent between the names of the columns."""
    first = HEADER.match(text.lstrip("\r\n"))
    return max(SEPARATORS, key=QUOTED.sub("", first[0] if first else "").count)


def parsed(file: str, data: bytes) -> tuple[Sequence[str], list[Row]]:
    """The names of the columns, and the rows that are not empty."""
    text = _text(file, data)
    named = NAMED_SEPARATOR.match(text)
    separator = named[1] if named else _separator(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records: list[tuple[int, list[str]]] = []
    line = 1
    if named:
        next(reader)
        line = 2
    try:
        for record in reader:
            cells = [cell.strip(SPACES) for cell in record]
            if any(cells):
                records.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        seen = f"it is not a valid CSV table: {error} (the row from line {line} on)"
        raise error_for_source(file, seen, "Correct this row, or save the table as CSV again.") from error
    header = records[0][1] if records else []
    names = [name for name in header if name]
    if len(records) < 2 or len(set(names)) < 2 or len(set(names)) < len(names):  # noqa: PLR2004
        seen = f"it has {max(0, len(records) - 1)} rows and the columns {', '.join(names) or 'none'}"
        raise error_for_source(file, seen, "Give the table at least two columns, each with a unique name.")
    if garbled := [shown for name in names if (shown := printable(name))]:
        seen = f"the names of its columns have control characters: {', '.join(garbled)}"
        raise error_for_source(file, seen, "Save it as UTF-8.")
    return header, [
        Row(line, len(cells), dict(zip(header, cells, strict=True)) if len(cells) == len(header) else {})
        for line, cells in records[1:]
    ]
