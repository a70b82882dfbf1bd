"""What of a DICOM file is the picture: a window of its values, the first of several frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LARGEST = 1e9
"""No scanner's unit goes so far; infinity and NaN are refused as well."""


@dataclass(frozen=True, slots=True)
class View:
    """What the user asks for.

    Attributes:
        window: Centre and width of the values shown, in the scanner's units (of CT: Hounsfield); None: the
            file's own.
        first_frame: Whether the first of several frames stands for them all.
    """

    window: tuple[float, float] | None = None
    first_frame: bool = False

    @property
    def facts(self) -> Mapping[str, object]:
        """What differs from the default."""
        window = {"window": list(self.window)} if self.window else {}
        return {**window, **({"frames": "first"} if self.first_frame else {})}

    @classmethod
    def parsed(cls, window: str, *, first_frame: bool) -> View:
        """From `CENTRE/WIDTH`, or nothing.

        Raises:
            ValueError: It is neither.
        """
        if not window:
            return cls(None, first_frame)
        centre, width = map(float, window.split("/"))
        if not (abs(centre) < LARGEST and 0 < width < LARGEST):
            raise ValueError(window)
        return cls((centre, width), first_frame)


PLAIN = View()
"""What each file says itself."""
