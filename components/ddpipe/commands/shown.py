"""What an engine shows of a step, independent of the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Shown(Protocol):
    """Something that an engine shows."""

    @property
    def content(self) -> bytes:
        """Its file: UIs report an error if there is none."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers to compare between runs."""

    values: Mapping[str, float]

    @property
    def content(self) -> bytes:
        """As JSON."""
        return json.dumps(dict(self.values)).encode()


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page."""

    html: str

    @property
    def content(self) -> bytes:
        """The page itself."""
        return self.html.encode()


@dataclass(frozen=True, slots=True)
class Document:
    """A file of the run, with metadata for the engine."""

    content: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classification:
    """How well a model separates the classes.

    Attributes:
        classes: Names.
        confusion_matrix: Counts by true class (row) and predicted class (column); may be empty.
        false_positive_rate: Of the ROC curve, point by point.
        true_positive_rate: Of the points of the curve.
        threshold: Of the points of the curve.
    """

    classes: Sequence[str]
    confusion_matrix: Sequence[Sequence[int]]
    false_positive_rate: Sequence[float]
    true_positive_rate: Sequence[float]
    threshold: Sequence[float]

    @property
    def content(self) -> bytes:
        """As JSON."""
        rows = [list(row) for row in self.confusion_matrix]
        return json.dumps({"classes": list(self.classes), "confusion_matrix": rows}).encode()


@dataclass(frozen=True, slots=True)
class EventFiles:
    """A folder of TensorBoard's event files."""

    folder: str

    @property
    def content(self) -> bytes:
        """Its URI."""
        return self.folder.encode()
