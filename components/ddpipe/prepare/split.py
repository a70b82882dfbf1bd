"""Which sample goes to which split: a function of the seed and the sample's own id, or of its group's.

A sample's place must not depend on the other samples, or adding images would move old ones, and a test image
that wanders into training is a leak that no metric shows. So each id is hashed to a position between 0 and 1,
and the fractions cut that line:

    0 ── test ──┬── validation ──┬──────────────── train ────────────────── 1

With k folds, all that is not test is cut into k pieces of one length, and one of them is validation. Samples
of one group (the X-rays of one patient) have the group's position, so no group is in two splits.

Each class gets into every split: where the positions leave a class out of a split, one unit (a sample, or a
whole group) with that class moves over, if the split that gives it away keeps all of its own classes. The
price is that shares are met on average, not to the image: a class of 1,000 has 100 ± 10 in a tenth.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpipe.data.manifest import SPLITS, Label


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How samples are dealt out.

    Attributes:
        fractions: Share of each split; they add up to 1.
        seed: Another seed, other splits.
        folds: Pieces for cross-validation; 0: none, validation has its own share.
        fold: Which of them is validation, from 0.
    """

    fractions: Mapping[str, float]
    seed: int = 0
    folds: int = 0
    fold: int = 0


def open_splits(given: Sequence[str]) -> tuple[str, ...]:
    """The splits that are filled from what the source calls training or does not place at all."""
    return tuple(split for split in SPLITS if split == "train" or split not in given)


def assign(
    units: Sequence[str], labels: Sequence[Label], rule: SplitRule, given: Sequence[str] = ()
) -> list[str]:
    """Deal samples out to splits.

    Args:
        units: What stays together: the group of each sample, or its id.
        labels: Of each sample.
        rule: How.
        given: The split that the source puts each sample into, or "".

    Returns:
        The name of each sample's split.
    """
    given = given or [""] * len(units)
    splits = open_splits(given)
    classes: dict[str, set[int]] = defaultdict(set)
    for unit, label, fixed in zip(units, labels, given, strict=True):
        if fixed in {"", "train"}:
            classes[unit] |= shown(label)
    positions = {unit: _position(unit, rule.seed) for unit in classes}
    places = {unit: _place(position, splits, rule) for unit, position in positions.items()}
    _fill(places, splits, classes, positions)
    return [
        places[unit] if fixed in {"", "train"} else fixed for unit, fixed in zip(units, given, strict=True)
    ]


def shown(label: Label) -> set[int]:
    """The classes that an image shows."""
    return {label} if isinstance(label, int) else {index for index, value in enumerate(label) if value}


def _place(position: float, splits: Sequence[str], rule: SplitRule) -> str:
    shares = {split: rule.fractions[split] for split in splits}
    test, validation = (shares.get(split, 0) / sum(shares.values()) for split in ("test", "validation"))
    if position < test:
        return "test"
    if "validation" in splits and rule.folds:
        chosen = int((position - test) / (1 - test) * rule.folds) == rule.fold
    else:
        chosen = position < test + validation
    return "validation" if chosen else "train"


def _fill(
    places: dict[str, str],
    splits: Sequence[str],
    classes: Mapping[str, set[int]],
    positions: Mapping[str, float],
) -> None:
    """Move units, so that every class is in every split as far as that can be; the rarest come first."""
    holders: dict[int, list[str]] = defaultdict(list)
    counts: dict[str, Counter[int]] = {split: Counter() for split in splits}
    for unit in sorted(classes, key=lambda unit: (positions[unit], unit)):
        counts[places[unit]].update(classes[unit])
        for label in classes[unit]:
            holders[label].append(unit)
    for label in sorted(holders, key=lambda label: (len(holders[label]), label)):
        for split in splits:
            if counts[split][label]:
                continue
            giver = max(splits, key=lambda name: counts[name][label])
            spare = [
                unit
                for unit in holders[label]
                if places[unit] == giver and all(counts[giver][other] > 1 for other in classes[unit])
            ]
            for unit in spare[:1]:
                counts[giver].subtract(classes[unit])
                counts[split].update(classes[unit])
                places[unit] = split


def _position(name: str, seed: int) -> float:
    """Uniform over [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
