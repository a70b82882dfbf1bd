"""A CSV file that says what its images show: one column of classes, or several of 0 and 1."""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ddpipe.data.manifest import SPLITS, Label
from ddpipe.errors import NoSuchObject, listed
from ddpipe.prepare.sources.base import Sample, Survey, Table, refused, sorted_out
from ddpipe.prepare.sources.folder import SPLIT_FOLDERS, files, stamp
from ddpipe.storage import ObjectInfo, open_store, read_uri

log = logging.getLogger(__name__)

RANZCR = Table(image="StudyInstanceUID", group="PatientID")
"""RANZCR CLiP as Kaggle ships it: train.csv with 11 labels, and the folder train/ with the X-rays."""

SEPARATORS = ",;\t|"

Rows = Sequence[Mapping[str, str]]


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
        """Match the rows with the images; whatever is wrong with the file is told at once."""
        names, rows = self._rows()
        columns = self._columns(names)
        if problems := list(_problems(rows, columns)):
            raise refused(self._file, listed(problems), "Correct these rows.")
        found = _by_name(files(self.path))
        classes, task = _classes(rows, columns)
        places = {row[columns.image]: _match(row[columns.image], found) for row in rows}
        missing = {name: place for name, place in places.items() if isinstance(place, str)}
        samples, unprintable = sorted_out(
            Sample(
                id=row[columns.image],
                label=_label(row, columns, classes),
                stamp=stamp(place),
                where=place.key,
                group=row[columns.group] if columns.group else "",
                split=SPLIT_FOLDERS[row[columns.split].lower()] if columns.split else "",
            )
            for row in rows
            if not isinstance(place := places[row[columns.image]], str)
        )
        self._tell_unlabelled(found, {sample.where for sample in samples})
        return Survey(classes=classes, samples=samples, task=task, problems=missing | unprintable)

    def read(self, sample: Sample) -> bytes:
        """The file."""
        return open_store(self.path).read(sample.where)

    @property
    def _file(self) -> str:
        is_whole = "://" in self.table.file or self.table.file.startswith("/")
        return self.table.file if is_whole else f"{self.path.rstrip('/')}/{self.table.file}"

    def _rows(self) -> tuple[Sequence[str], Rows]:
        try:
            text = _text(read_uri(self._file))
        except NoSuchObject as error:
            raise refused(self._file, "there is no such file", "Name the CSV file with --table.") from error
        header = text.partition("\n")[0]
        separator = max(SEPARATORS, key=header.count)
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, restval="")
        try:
            rows = [{name: value.strip() for name, value in row.items() if name} for row in reader]
        except (csv.Error, AttributeError) as error:
            raise refused(self._file, f"it is no table: {error}", "Save it as CSV again.") from error
        names = [name for name in reader.fieldnames or () if name]
        if not rows or len(set(names)) < 2 or len(set(names)) < len(names):  # noqa: PLR2004
            seen = f"it has {len(rows)} rows and the columns {', '.join(names) or 'none'}"
            raise refused(self._file, seen, "Give each column one name of its own, and at least two of them.")
        return names, rows

    def _columns(self, names: Sequence[str]) -> Table:
        """The table with every column named."""
        wanted = self.table
        image = wanted.image or names[0]
        others = {image, wanted.group, wanted.split}
        labels = wanted.labels or tuple(name for name in names if name not in others)
        missing = [
            name for name in (image, *labels, wanted.group, wanted.split) if name and name not in names
        ]
        if missing or not labels:
            seen = f"it has no column {', '.join(map(repr, missing)) or 'of labels'}, only {', '.join(names)}"
            raise refused(self._file, seen, "Name the columns that it has.")
        return Table(file=wanted.file, image=image, labels=labels, group=wanted.group, split=wanted.split)

    def _tell_unlabelled(self, found: Mapping[str, Sequence[ObjectInfo]], used: set[str]) -> None:
        keys = {info.key for infos in found.values() for info in infos}
        if unlabelled := sorted(key for key in keys - used if not key.endswith(".csv")):
            log.warning(
                "%s files below %s are not named in %s and left out, such as %s",
                f"{len(unlabelled):,}",
                self.path,
                self.table.file,
                unlabelled[0],
            )


def _text(data: bytes) -> str:
    """UTF-8, with or without its mark; UTF-16 with its mark; else what Windows writes in the West."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _problems(rows: Rows, columns: Table) -> Iterator[str]:
    """What is wrong with the rows, each kind with its lines."""
    lines: dict[str, list[int]] = defaultdict(list)
    counts = Counter(row[columns.image] for row in rows)
    for line, row in enumerate(rows, start=2):
        name = row[columns.image]
        if not name:
            lines["the image is not named"].append(line)
        elif counts[name] > 1:
            lines[f"{name!r} is there {counts[name]} times"].append(line)
        if columns.group and not row[columns.group]:
            lines[f"{columns.group!r} is empty"].append(line)
        if columns.split and row[columns.split].lower() not in SPLIT_FOLDERS:
            lines[f"{columns.split!r} is {row[columns.split]!r}, not {', '.join(SPLITS)}"].append(line)
        for label in columns.labels:
            value = row[label]
            if value.lower() in {"", "nan", "na", "null", "none"}:
                lines[f"{label!r} is {value!r}: no label"].append(line)
            elif len(columns.labels) > 1 and value not in _BINARY:
                lines[f"{label!r} is {value!r}, not 0 or 1"].append(line)
    for problem, where in lines.items():
        shown = ", ".join(map(str, where[:5])) + (" …" if len(where) > 5 else "")  # noqa: PLR2004
        yield f"{problem} (line{'s' if len(where) > 1 else ''} {shown}: {len(where)} in all)"


_BINARY: Mapping[str, int] = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


def _classes(rows: Rows, columns: Table) -> tuple[tuple[str, ...], str]:
    if len(columns.labels) > 1:
        return columns.labels, "multilabel"
    return tuple(sorted({row[columns.labels[0]] for row in rows})), "multiclass"


def _label(row: Mapping[str, str], columns: Table, classes: Sequence[str]) -> Label:
    if len(columns.labels) > 1:
        return tuple(_BINARY[row[label]] for label in columns.labels)
    return classes.index(row[columns.labels[0]])


def _by_name(infos: Iterator[ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    """All files by each of the ways in which a table may name them."""
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in infos:
        path = PurePosixPath(info.key)
        for name in {info.key, path.name, path.stem, path.with_suffix("").as_posix()}:
            found[name].append(info)
    return found


def _match(name: str, found: Mapping[str, list[ObjectInfo]]) -> ObjectInfo | str:
    """The one image of this name, or what is the matter."""
    infos = found.get(name) or found.get(f"train/{name}") or []
    if len(infos) > 1:  # RANZCR's test images lie beside those of training
        infos = [info for info in infos if info.key.startswith("train/")] or infos
    if len(infos) == 1:
        return infos[0]
    if not infos:
        return "the CSV names it, but there is no such image"
    return f"it could be {infos[0].key} or {infos[1].key}"
