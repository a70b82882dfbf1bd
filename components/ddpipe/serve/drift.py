"""Whether images and answers differ from those of a model's training. Pure functions.

A difference counts if it is both large and no accident: in millions of images a tiny one is certain, among
ten images a large one means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

from ddpipe.model.reference import Reference

LARGE_SHARE = 0.1
"""Difference of a class's share that counts as large."""

LARGE_SHIFT = 0.5
"""Difference in brightness that counts as large, in standard deviations of the reference's images."""

ROUNDING = 1e-6
"""Difference in brightness, from 0 to 255, that arithmetic alone makes."""

CERTAIN = 3.3
"""Standard errors that count as certain: of a thousand comparisons, one is beyond them by accident."""


@dataclass(slots=True)
class Seen:
    """What has been predicted so far: sums, so that millions of images need no memory.

    Attributes:
        images: How many were answered.
        counts: Of each class, the images in whose answer it is.
        total: Of each channel, the sum of the images' means.
    """

    images: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)

    def add(self, answer: Sequence[str], brightness: Sequence[float]) -> None:
        """Count an image."""
        self.images += 1
        for name in answer:
            self.counts[name] = self.counts.get(name, 0) + 1
        before = self.total or [0.0] * len(brightness)
        self.total = [one + more for one, more in zip(before, brightness, strict=True)]

    def share(self, name: str) -> float:
        """Fraction of images in whose answer a class is."""
        return self.counts.get(name, 0) / max(1, self.images)

    @property
    def brightness(self) -> list[float]:
        """Of each channel, the mean of the images' means."""
        return [one / max(1, self.images) for one in self.total]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number, then and now.

    Attributes:
        what: Whose it is.
        before: On the training images.
        now: In the images that are predicted.
        drifted: Whether the difference is large and certain.
    """

    what: str
    before: float
    now: float
    drifted: bool


def changes(reference: Reference, seen: Seen, classes: Sequence[str]) -> list[Change]:
    """Shares of classes and brightness of channels, of the training and now."""
    return [*_shares(reference, seen, classes), *_brightness(reference, seen)]


def _shares(reference: Reference, seen: Seen, classes: Sequence[str]) -> Iterator[Change]:
    for name, before in zip(classes, reference.shares, strict=True):
        now = seen.share(name)
        pooled = (before * reference.images + now * seen.images) / max(1, reference.images + seen.images)
        error = sqrt(pooled * (1 - pooled) * _inverse(reference, seen))
        drifted = abs(now - before) > max(LARGE_SHARE, CERTAIN * error)
        yield Change(what=f"share of {name}", before=before, now=now, drifted=drifted)


def _brightness(reference: Reference, seen: Seen) -> Iterator[Change]:
    names = ("brightness",) if len(reference.brightness) == 1 else ("red", "green", "blue")
    found = zip(names, reference.brightness, reference.spread, seen.brightness, strict=False)
    for name, before, spread, now in found:
        certain = CERTAIN * spread * sqrt(_inverse(reference, seen))
        # Images that are all equally bright have no spread, and any other brightness is a difference.
        drifted = abs(now - before) > max(LARGE_SHIFT * spread, certain, ROUNDING)
        yield Change(what=name, before=before, now=now, drifted=drifted)


def _inverse(reference: Reference, seen: Seen) -> float:
    return 1 / max(1, reference.images) + 1 / max(1, seen.images)
