"""The parameters of the step; importable without numpy, which compiling pipelines must not need."""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ddpipe.data.manifest import DATASET
from ddpipe.parameters import AUTO, Between, OneOf, Parameters, parameter
from ddpipe.sources.base import ReadOptions, Table
from ddpipe.sources.detecting import detected, with_table
from ddpipe.sources.named import BUILT_IN, DOWNLOADS, SOURCES

DIGITS = "digits"  # the source that needs no path
GROUPED = ("folder", "webdataset")  # sources whose paths may name groups; a table has a column for them
_SUFFIX = re.compile(r"\.(tar|csv)(\.[a-z0-9]+)?$|\.tgz$")  # left out of a dataset's name

log = logging.getLogger(__name__)

LARGEST_SIDE = 4096  # of an image in a shard, in pixels; more is a slip of the pen


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSpec(Parameters):
    """What to prepare, from what, and where to."""

    what: ClassVar[str] = "the data cannot be prepared"
    heading: ClassVar[str] = "Data"
    others: ClassVar[str] = "data_options"

    source: str = parameter(
        AUTO,
        f"Kind of raw data: {', '.join(SOURCES)}, or auto (detected from source_path; digits without one).",
        OneOf((AUTO, *SOURCES)),
        form="data_source",
    )
    source_path: str = parameter(
        "",
        "URI of the raw data, a folder, a file or s3://bucket/prefix; empty for built-in and downloaded "
        "sources.",
        form="data_path",
    )
    dataset_name: str = parameter(
        "",
        "Name of the dataset, shared by its versions (default: that of the folder, the file or the source).",
        form="data_name",
    )
    store: str = parameter(
        "store", "URI of the dataset store, a folder or s3://bucket/prefix.", form="storage_datasets"
    )
    image_size: int = parameter(
        0,
        "Side of all images in pixels, which are then square; 0 means the most common size up to 96, and as "
        "many pixels as 256 x 256 for larger images. What would lose more than a little by cropping is kept "
        "whole, on white.",
        Between(0, LARGEST_SIDE),
    )
    validation_fraction: float = parameter(
        0.1, "Fraction of samples in the validation split.", Between(0, 1, open_low=True, open_high=True)
    )
    test_fraction: float = parameter(
        0.1,
        "Fraction of samples in the test split; the rest is for training.",
        Between(0, 1, open_low=True, open_high=True),
    )
    split_seed: int = parameter(0, "Seed that assigns samples to splits.", Between(0, 2**32 - 1))
    window: str = parameter(
        "",
        "Range of DICOM values to show, as CENTER/WIDTH, such as 40/400 (default: each file's own window).",
    )
    first_frame: bool = parameter(
        default=False,
        help="Use the first frame of files with several (DICOM, GIF, TIFF), instead of rejecting them.",
    )
    group_pattern: str = parameter(
        "",
        "Regular expression (RE2) for the image paths of folders and tars; its match, or its first group "
        "(...), identifies images to keep in the same split.",
    )
    table: str = parameter(
        Table().file, "CSV file for the source csv, relative to source_path or the working directory."
    )
    image_column: str = parameter("", "Column with the name of the image (default: the first column).")
    label_columns: str = parameter(
        "", "One class column, or several 0/1 columns, separated by commas (default: all remaining columns)."
    )
    group_column: str = parameter(
        "", "Column that identifies images to keep in the same split, such as a patient ID."
    )
    split_column: str = parameter(
        "",
        "Column that assigns each sample to train, validation or test; without any validation, part of "
        "train is used for it.",
    )
    verify: bool = parameter(
        default=False,
        help="Read all files and shards again, even those that seem unchanged, and rewrite damaged shards.",
    )
    skip_bad: bool = parameter(
        default=False,
        help="Leave out unreadable images, and rows without a label, and report them, instead of rejecting "
        "the data.",
    )

    # No parameter: in Python, "raw" or "jpeg" for comparisons; otherwise the size of the images decides.
    image_format: str = "auto"

    def with_detected_source(self) -> PrepareSpec:
        """The same with the source that the raw data has, if this is left open."""
        if self.source != AUTO:
            return self
        if not self.source_path:
            return replace(self, source=DIGITS).validated()
        if self.table != Table().file:
            return replace(self, source="csv").validated()
        found = with_table(self.source_path) if self.names_columns else detected(self.source_path)
        log.info("%s is read as source %s", self.source_path, found.source)
        return replace(self, source=found.source, source_path=found.path, table=found.table).validated()

    @property
    def name(self) -> str:
        """The dataset's name: by default that of the folder or file, or of a source that names its images."""
        if self.dataset_name or not self.source_path or self.source in {*BUILT_IN, *DOWNLOADS}:
            return self.dataset_name or (DIGITS if self.source == AUTO else self.source)
        last = _SUFFIX.sub("", self._place.rstrip("/").rpartition("/")[2].lower())
        return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._")[:63] or self.source

    @property
    def _place(self) -> str:
        """The URI of the raw data, or its absolute path."""
        path = self.source_path
        return path if "://" in path else os.path.normpath(Path(path).absolute())

    @property
    def where(self) -> str:
        """The raw data, for messages."""
        return self.source_path or self.source

    @property
    def origin(self) -> Mapping[str, str]:
        """Where the raw data lies, without what an address may hold of secrets, and its table."""
        if not self.source_path:
            return {}
        is_whole = "://" in self.table or self.table.startswith("/")
        table = self.table if is_whole else f"{self._place.rstrip('/')}/{self.table}"
        shown = {"location": self._place, **({"table": table} if self.source == "csv" else {})}
        return {name: re.sub(r"(?<=://)[^/@]*@|[?#].*", "", place) for name, place in shown.items()}

    @property
    def reading(self) -> ReadOptions:
        """What of DICOM files is the picture."""
        return ReadOptions.parsed(self.window, first_frame=self.first_frame)

    @property
    def columns(self) -> Table:
        """What the columns of the source's CSV file mean."""
        return Table(
            file=self.table,
            image=self.image_column,
            labels=tuple(filter(None, map(str.strip, self.label_columns.split(",")))),
            group=self.group_column,
            split=self.split_column,
            skip_unlabelled=self.skip_bad,
        )

    @property
    def names_columns(self) -> bool:
        """Whether something is said about a table."""
        return replace(self.columns, skip_unlabelled=False) != Table()

    @property
    def fractions(self) -> dict[str, float]:
        """The share of each split."""
        return {
            "train": 1 - self.validation_fraction - self.test_fraction,
            "validation": self.validation_fraction,
            "test": self.test_fraction,
        }

    def conflicts(self) -> Iterator[str]:
        """What is wrong with values that are valid one by one."""
        if self.source in BUILT_IN and self.source_path:
            yield f"`source_path` is {self.source_path!r}, but the source {self.source} is built in"
        if self.source not in {AUTO, *BUILT_IN, *DOWNLOADS} and not self.source_path:
            yield f"`source_path` is empty, but the source {self.source} needs a folder or s3://bucket/prefix"
        if self.source not in {AUTO, "csv"} and self.names_columns:
            yield f"a table or its columns are given, but the source is {self.source}, not csv"
        if self.group_pattern and self.source not in {AUTO, *GROUPED}:
            yield f"`group_pattern` is for the sources {', '.join(GROUPED)}, but the source is {self.source}"
        yield from self._malformed()

    def _malformed(self) -> Iterator[str]:
        if self.group_pattern and (reason := problem(self.group_pattern)):
            yield f"`group_pattern` is {self.group_pattern!r}, not a regular expression of RE2: {reason}"
        if self.validation_fraction + self.test_fraction >= 1:
            yield (
                f"`validation_fraction` {self.validation_fraction:g} and "
                f"`test_fraction` {self.test_fraction:g} leave nothing for training"
            )
        try:
            ReadOptions.parsed(self.window, first_frame=self.first_frame)
        except ValueError:
            yield f"`window` is {self.window!r}, not CENTER/WIDTH, such as 40/400"
        if not DATASET.fullmatch(self.name):
            yield (
                f"`dataset_name` is {self.name!r}, not up to 63 of a-z, 0-9, '.', '_' and '-', "
                "starting with a letter or digit"
            )
        if not self.store:
            yield "`store` is empty"


Search = Callable[[str], Any]  # searches a text; gives a match in the form of Python's `re`, or None


def compiled(pattern: str) -> Search:
    """What searches for a pattern."""
    import re2  # noqa: PLC0415 - parameters are checked without it, too: see `problem`

    options = re2.Options()
    options.log_errors = False
    try:
        search: Search = re2.compile(pattern, options).search
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error
    return search


def problem(pattern: str) -> str:
    """Why this is no regular expression; empty if it is one, or where RE2 is not installed: to compile."""
    try:
        compiled(pattern)
    except ValueError as error:
        return str(error)
    except ImportError:
        pass
    return ""
