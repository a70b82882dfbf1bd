"""Which sample goes to which split: a function of the seed and the sample's own id, or of its group's.

A sample's place must not depend on the other samples, or adding images would move old ones, and a test image
that wanders into training is a leak that no metric shows. So each id is hashed to a position between 0 and 1,
and the fractions cut that line:

    0 ── test ──┬── validation ──┬──────────────── train ────────────────── 1

With k folds, all that is not test is cut into k pieces of one length, and one of them is validation. Samples
of one group (the X-rays of one patient) have the group's position, so no group is in two splits.

Each class gets into every piece: where the positions leave a class out, one unit (a sample, or a whole group)
with that class moves over, if the piece that gives it away keeps all of its own classes. These few units are
the only ones that adding images may move. The price is that shares are met on average, not to the image: a
class of 1,000 has 100 ± 10 in a tenth. A small set may rather want exact shares: stratify.py deals them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ddpipe.data.manifest import Label
from ddpipe.prepare.stratify import exact_shares

CUT = ("test", "validation", "train")
"""The splits in the order in which they lie on the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How samples are dealt out.

    Attributes:
        fractions: Share of each split; they add up to 1.
        seed: Another seed, other splits.
        folds: Pieces for cross-validation; 0: none, validation has its own share.
        fold: Which of them is validation, from 0.
        exact: Whether each class's share is met within one unit; then adding samples may move others.
    """

    fractions: Mapping[str, float]
    seed: int = 0
    folds: int = 0
    fold: int = 0
    exact: bool = False

    def pieces(self, given: Collection[str]) -> dict[str, float]:
        """What the line of positions is cut into: splits or folds, in their order, with their shares.

        Args:
            given: The splits that the source fills itself.
        """
        shares = {split: self.fractions[split] for split in CUT if split == "train" or split not in given}
        if self.folds and "validation" in shares:
            rest = shares.pop("validation") + shares.pop("train")
            shares |= {f"fold {fold}": rest / self.folds for fold in range(self.folds)}
        return {piece: share / sum(shares.values()) for piece, share in shares.items()}

    def split_of(self, piece: str) -> str:
        """The split that a piece is, or is a part of."""
        if piece in CUT:
            return piece
        return "validation" if piece == f"fold {self.fold}" else "train"


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
    pieces = rule.pieces(given)
    classes: dict[str, set[int]] = defaultdict(set)
    for unit, label, fixed in zip(units, labels, given, strict=True):
        if fixed in {"", "train"}:
            classes[unit] |= shown(label)
    positions = {unit: _position(unit, rule.seed) for unit in classes}
    ordered = {unit: classes[unit] for unit in sorted(classes, key=lambda unit: (positions[unit], unit))}
    if rule.exact:
        places = exact_shares(ordered, pieces)
    else:
        places = {unit: _place(positions[unit], pieces) for unit in ordered}
    _fill(places, tuple(pieces)[::-1], ordered)
    return [
        rule.split_of(places[unit]) if fixed in {"", "train"} else fixed
        for unit, fixed in zip(units, given, strict=True)
    ]


def shown(label: Label) -> set[int]:
    """The classes that an image shows."""
    return {label} if isinstance(label, int) else {index for index, value in enumerate(label) if value}


def _place(position: float, pieces: Mapping[str, float]) -> str:
    """The piece that a position lies in."""
    *ends, _ = accumulate(pieces.values())
    return tuple(pieces)[bisect_right(ends, position)]


def _fill(places: dict[str, str], pieces: Sequence[str], classes: Mapping[str, set[int]]) -> None:
    """Move units, so that every class is in every piece as far as that can be; the rarest come first.

    Args:
        places: The piece of each unit.
        pieces: All pieces, in the order in which they are served.
        classes: That each unit shows; in an order that is always the same.
    """
    holders: dict[int, list[str]] = defaultdict(list)
    counts: dict[str, Counter[int]] = {piece: Counter() for piece in pieces}
    for unit, found in classes.items():
        counts[places[unit]].update(found)
        for label in found:
            holders[label].append(unit)
    for label in sorted(holders, key=lambda label: (len(holders[label]), label)):
        for piece in pieces:
            if counts[piece][label]:
                continue
            giver = max(pieces, key=lambda name: counts[name][label])
            spare = [
                unit
                for unit in holders[label]
                if places[unit] == giver and all(counts[giver][other] > 1 for other in classes[unit])
            ]
            for unit in spare[:1]:
                counts[giver].subtract(classes[unit])
                counts[piece].update(classes[unit])
                places[unit] = piece


def _position(name: str, seed: int) -> float:
    """Uniform over [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
