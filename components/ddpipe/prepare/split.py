"""Which sample goes to which split: a function of the seed and the sample's own id.

A sample's place must not depend on the other samples, or adding images would move old ones, and a test image
that wanders into training is a leak that no metric shows. So each id is hashed to a position between 0 and 1,
and the fractions cut that line:

    0 ── test ──┬── validation ──┬──────────────── train ────────────────── 1

Each class is dealt out on its own and gets at least one sample in every split: where the positions leave a
split of a small class empty, the nearest sample moves over; only such a class may take one back as it grows.
The price is that shares are met on average, not to the image: a class of 1,000 has 100 ± 10 in a tenth.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ddpipe.data.manifest import SPLITS

SMALLEST_CLASS = len(SPLITS)
"""Fewer samples can not be in every split."""

Interval = tuple[float, float]


def assign(ids: Sequence[str], labels: Sequence[int], fractions: Mapping[str, float], seed: int) -> list[str]:
    """Deal samples out to splits.

    Args:
        ids: Unique.
        labels: The class of each; every class has at least `SMALLEST_CLASS` samples.
        fractions: Share of each split; they add up to 1.
        seed: Another seed, other splits.

    Returns:
        The name of each sample's split.
    """
    cuts = _intervals(fractions)
    positions = [_position(name, seed) for name in ids]
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    splits = [""] * len(ids)
    for members in by_class.values():
        for split, chosen in _deal(members, positions, cuts).items():
            for index in chosen:
                splits[index] = split
    return splits


def _deal(
    members: Sequence[int], positions: Sequence[float], cuts: Mapping[str, Interval]
) -> dict[str, list[int]]:
    """The members of one class by split, no split empty."""
    dealt = {
        split: [index for index in members if start <= positions[index] < end]
        for split, (start, end) in cuts.items()
    }
    for split, (start, end) in cuts.items():
        if not dealt[split]:
            giver = max(dealt.values(), key=len)
            nearest = min(giver, key=lambda index: max(start - positions[index], positions[index] - end))
            giver.remove(nearest)
            dealt[split].append(nearest)
    return dealt


def _intervals(fractions: Mapping[str, float]) -> dict[str, Interval]:
    test, validation = fractions["test"], fractions["validation"]
    return dict(
        zip(("test", "validation", "train"), pairwise((0.0, test, test + validation, 1.0)), strict=True)
    )


def _position(name: str, seed: int) -> float:
    """Uniform over [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
