"""Which ranks' logs are shown: `first`, `all`, or numbers such as 0,5-7."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class RankSelection:
    """A choice of pods by their number, 0 for the first.

    Attributes:
        ranges: The numbers; None for all.
    """

    ranges: tuple[range, ...] | None = None

    @classmethod
    def parsed(cls, text: str) -> RankSelection:
        """The choice that `text` means."""
        if text == "all":
            return cls()
        if text == "first":
            return cls((range(1),))
        return cls(tuple(_range(part.strip()) for part in text.split(",")))

    def __contains__(self, number: int) -> bool:
        """Whether the pod of this number is chosen."""
        return self.ranges is None or any(number in chosen for chosen in self.ranges)


def _range(text: str) -> range:
    match = _RANGE.fullmatch(text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"{text!r} is not first, all, or numbers such as 0,5-7")
    return range(int(match[1]), int(match[2] or match[1]) + 1)
