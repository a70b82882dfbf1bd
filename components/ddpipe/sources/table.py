"""Labels from a CSV file: one column of classes, or several of 0 and 1."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from ddpipe.data.manifest import SPLITS, Label
from ddpipe.data.names import printable
from ddpipe.errors import NoSuchObject, listed
from ddpipe.sources.base import Survey, Table, refused, sorted_out, store_of
from ddpipe.sources.csv_file import Row, parsed
from ddpipe.sources.folder import ENDINGS, SPLIT_FOLDERS
from ddpipe.sources.listing import listed_files, read_file, stamp
from ddpipe.sources.sample import Sample
from ddpipe.sources.times import moment
from ddpipe.storage import ObjectInfo, read_uri

log = logging.getLogger(__name__)

RANZCR = Table(image="StudyInstanceUID", group="PatientID")
"""RANZCR CLiP as Kaggle ships it: train.csv with 11 labels, and the folder train/ with the X-rays."""

UNLABELLED = frozenset({"", "nan", "na", "null", "none"})
"""What stands for a missing label, in any case."""

BINARY: Mapping[str, int] = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}

UNCERTAIN = frozenset({"-1", "-1.0"})
"""The label -1, for findings that a report calls uncertain, as in CheXpert and MIMIC-CXR."""

DECISIONS: Mapping[str, str] = {"zero": "0", "one": "1", "drop": "-1"}
"""What an uncertain label becomes; rows that still have one are left out."""


@dataclass(frozen=True, slots=True)
class Csv:
    """Images and a CSV file.

    Attributes:
        path: Folder of the images, or s3://bucket/prefix.
        table: The file, and what its columns mean.
    """

    path: str
    table: Table

    def survey(self) -> Survey:
        """Match the rows with the images; one error lists everything that is wrong with the file."""
        file, data = self._content()
        header, rows = parsed(file, data)
        columns = _named(file, header, self.table)
        listing = listed_files(self.path)
        found = _by_name(listing.infos)
        _refuse_missing_header(file, header, found)
        rows, uncertain = _decided(rows, columns)
        named = {name: _match(name, found) for row in rows if (name := row.cells.get(columns.image))}
        rows, left_out = _chosen(file, rows, columns)
        places = {name: named[name] for row in rows if (name := row.cells.get(columns.image))}
        if problems := list(_problems(header, rows, columns, places)):
            raise refused(file, listed(problems), _remedy(rows, columns))
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
                split=SPLIT_FOLDERS[cells[columns.split].lower()] if columns.split else "",
            )
            for _, _, cells in rows
            if not isinstance(place := places[cells[columns.image]], str)
        )
        self._warn_of_unnamed(found, {place.key for place in named.values() if not isinstance(place, str)})
        return Survey(
            classes=classes,
            samples=samples,
            task=task,
            problems={**listing.problems, **missing, **unprintable},
            facts={**uncertain, **({"left_out": left_out} if left_out else {})},
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
        raise refused(name, f"there is no {' and no '.join(places)}", "Name the CSV file with `table`.")

    def _warn_of_unnamed(self, found: Mapping[str, Sequence[ObjectInfo]], used: set[str]) -> None:
        keys = {info.key for infos in found.values() for info in infos}
        if unnamed := sorted(key for key in keys - used if not key.endswith(".csv")):
            log.warning(
                "%s files below %s are not named in %s and left out, such as %s",
                f"{len(unnamed):,}",
                self.path,
                self.table.file,
                unnamed[0],
            )


def _refuse_missing_header(file: str, header: Sequence[str], found: Mapping[str, object]) -> None:
    """A first row that names an image would be lost, and its label would be a column's name."""
    if named := [name for name in header if name in found and name.lower().endswith(ENDINGS)]:
        raise refused(
            file,
            f"it has no header: its first row names the image {named[0]!r}",
            "Put the names of the columns into a line above it, such as image,label.",
        )


def _named(file: str, header: Sequence[str], wanted: Table) -> Table:
    """The table with every column named."""
    names = [name for name in header if name]
    image = wanted.image or names[0]
    others = {image, wanted.group, wanted.split, wanted.time}
    labels = wanted.labels or tuple(name for name in names if name not in others)
    chosen = [name for name in (image, *labels, wanted.group, wanted.split, wanted.time) if name]
    missing = [name for name in chosen if name not in names]
    if missing or not labels:
        seen = f"it has no column {', '.join(map(repr, missing)) or 'of labels'}, only {', '.join(names)}"
        raise refused(file, seen, "Name the columns that it has.")
    if repeated := [name for name, count in Counter(chosen).items() if count > 1]:
        seen = (
            f"{', '.join(map(repr, repeated))} is given more than once, as image, label, group, split or time"
        )
        raise refused(file, seen, "Give each column one meaning.")
    if wanted.uncertain and len(labels) == 1:
        seen = f"it has one column of labels, {labels[0]!r}: none of its classes is uncertain"
        raise refused(
            file,
            seen,
            "Leave out `uncertain`, or name several columns with `label_columns`.",
        )
    return replace(wanted, image=image, labels=labels)


def _decided(rows: list[Row], columns: Table) -> tuple[list[Row], dict[str, Any]]:
    """The rows with uncertain and blank labels replaced, if there is a policy, and facts for the manifest."""
    if columns.uncertain not in DECISIONS:
        return rows, {}
    decision, counts = DECISIONS[columns.uncertain], Counter[str]()

    def decided(value: str) -> str:
        kind = "labels" if value in UNCERTAIN else "blanks" if value.lower() in UNLABELLED else ""
        counts[kind] += 1
        return {"labels": decision, "blanks": "0"}.get(kind, value)

    def settled(row: Row) -> Row:
        if all(row.cells.get(label, "").lower() in UNLABELLED for label in columns.labels):
            return row
        return row._replace(
            cells={**row.cells, **{label: decided(row.cells[label]) for label in columns.labels}}
        )

    rows = [settled(row) for row in rows]
    facts = {"as": columns.uncertain, "labels": counts["labels"], "blanks": counts["blanks"]}
    return rows, {"uncertain": facts}


def _chosen(file: str, rows: list[Row], columns: Table) -> tuple[list[Row], dict[str, int]]:
    """The rows that are used, and the number of those that are not, by reason."""
    reasons: list[tuple[str, Callable[[Row, Table], bool]]] = []
    if newest := _newest(rows, columns):
        reason = f"rows {columns.newest_days:g} days or more before the newest, of {newest:%Y-%m-%d %H:%M}"
        reasons.append((reason, partial(_is_old, newest)))
    if columns.uncertain == "drop":
        reasons.append(("rows with an uncertain label", _is_uncertain))
    if columns.skip_unlabelled:
        reasons.append(("rows without a label", _lacks_label))
    left_out = {}
    for reason, is_out in reasons:
        kept = [row for row in rows if not is_out(row, columns)]
        if len(kept) < len(rows):
            left_out[reason] = len(rows) - len(kept)
            log.warning(
                "%s %s of %s are left out, of %s in all", f"{left_out[reason]:,}", reason, file, len(rows)
            )
        rows = kept
    if reasons and not rows:
        raise refused(file, "no row has a label", "Name the label columns with `label_columns`.")
    return rows, left_out


def _newest(rows: Sequence[Row], columns: Table) -> datetime | None:
    """The time of the newest row, if only the newest days are asked for.

    Days are counted back from it, not from a clock: the same table always gives the same rows.
    """
    if not columns.newest_days:
        return None
    times = (moment(row.cells.get(columns.time, "")) for row in rows)
    return max(filter(None, times), default=None)


def _is_old(newest: datetime, row: Row, columns: Table) -> bool:
    time = moment(row.cells.get(columns.time, ""))
    return time is not None and newest - time >= timedelta(days=columns.newest_days)


def _is_uncertain(row: Row, columns: Table) -> bool:
    return any(row.cells.get(label) in UNCERTAIN for label in columns.labels)


def _lacks_label(row: Row, columns: Table) -> bool:
    return any(row.cells.get(label, "?").lower() in UNLABELLED for label in columns.labels)


def _lacks_binary(row: Row, columns: Table) -> bool:
    """Whether a cell that should be 0 or 1 is something else than a missing or an uncertain label."""
    known = {*BINARY, *UNLABELLED, *UNCERTAIN}
    return any(row.cells.get(label, "").lower() not in known for label in columns.labels)


def _problems(
    header: Sequence[str], rows: Sequence[Row], columns: Table, places: Mapping[str, ObjectInfo | str]
) -> Iterator[str]:
    """What is wrong with the rows, each kind with its lines.

    Missing and ambiguous images are listed only together with other problems: alone, they can be skipped.
    """
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
        parts = {SPLIT_FOLDERS.get(row.cells.get(columns.split, "").lower()) for row in rows}
        yield from (
            f"{columns.split!r} puts no row into {part}, and rows of the other splits may not go there"
            for part in ("train", "test")
            if part not in parts
        )


def _in_cells(cells: Mapping[str, str], columns: Table) -> Iterator[str]:
    """What is wrong with a row of the right width."""
    used = (columns.image, *columns.labels, columns.group, columns.split, columns.time)
    for column in filter(None, used):
        if shown := printable(cells[column]):
            yield f"{column!r} is {shown!r}: it has control characters"
    if not cells[columns.image]:
        yield "the image is not named"
    if columns.group and not cells[columns.group]:
        yield f"{columns.group!r} is empty"
    if columns.split and cells[columns.split].lower() not in SPLIT_FOLDERS:
        yield f"{columns.split!r} is {cells[columns.split]!r}, not {', '.join(SPLITS)}"
    if columns.time and not moment(cells[columns.time]):
        yield f"{columns.time!r} is {cells[columns.time]!r}, no time such as 2026-11-23 or 2026-11-23T08:30"
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
    if len(columns.labels) > 1 and any(_lacks_binary(row, columns) for row in rows):
        ways.append(
            "`label_columns` names the columns of labels and `image_column` that of the "
            "images, if there are others"
        )
    if len(columns.labels) > 1 and any(_is_uncertain(row, columns) for row in rows):
        ways.append("`uncertain` says what -1 means: zero, one or drop; blanks next to labels are then 0")
    if any(_lacks_label(row, columns) for row in rows):
        ways.append("`skip_unlabelled` leaves out those without a label")
    return "; ".join(ways) + "."


def _classes(rows: Sequence[Row], columns: Table) -> tuple[tuple[str, ...], str]:
    if len(columns.labels) > 1:
        return columns.labels, "multilabel"
    return tuple(sorted({row.cells[columns.labels[0]] for row in rows})), "multiclass"


def _label(cells: Mapping[str, str], columns: Table, numbers: Mapping[str, int]) -> Label:
    if len(columns.labels) > 1:
        return tuple(BINARY[cells[label]] for label in columns.labels)
    return numbers[cells[columns.labels[0]]]


def _by_name(infos: Iterable[ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    """All files by each name that a table may use for them."""
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in infos:
        path = PurePosixPath(info.key)
        for name in {info.key, path.name, path.stem, path.with_suffix("").as_posix()}:
            found[name].append(info)
    return found


def _match(name: str, found: Mapping[str, list[ObjectInfo]]) -> ObjectInfo | str:
    """The one image of this name, or the problem."""
    infos = found.get(name) or [info for top in SPLIT_FOLDERS for info in found.get(f"{top}/{name}", ())]
    infos = [info for info in infos if info.key == name] or infos  # a whole path is unambiguous
    if len(infos) == 1:
        return infos[0]
    if not infos:
        return "the table names this image, but it does not exist"
    return f"it could be {infos[0].key} or {infos[1].key}: give its path"
