"""How image files are read: which values of a DICOM file are shown, and which of several frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LARGEST = 1e9
"""Largest value of a window; no scanner's unit comes near, and infinity and NaN are rejected as well."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How image files are read.

    Attributes:
        window: Center and width of the values shown, in the scanner's units (for CT: Hounsfield); None: the
            window of each DICOM file itself.
        first_frame: Read the first of several frames; else such files are rejected.
    """

    window: tuple[float, float] | None = None
    first_frame: bool = False

    @property
    def facts(self) -> Mapping[str, object]:
        """What differs from the default."""
        window = {"window": list(self.window)} if self.window else {}
        return {**window, **({"frames": "first"} if self.first_frame else {})}

    @classmethod
    def parsed(cls, window: str, *, first_frame: bool) -> ReadOptions:
        """From `CENTER/WIDTH`, or an empty string."""
        if not window:
            return cls(None, first_frame)
        center, width = map(float, window.split("/"))
        if not (abs(center) < LARGEST and 0 < width < LARGEST):
            raise ValueError(window)
        return cls((center, width), first_frame)


DEFAULT = ReadOptions()
