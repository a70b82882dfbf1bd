"""Which sample goes to which split: a function of the seed and the sample's own id, or of its group's.

A sample's split must not depend on the other samples: otherwise adding images would move old ones, and a test
image that moves into training is a leak that no metric shows. So each id is hashed to a position between 0
and 1, and the fractions cut that line:

    0 ── test ──┬── validation ──┬──────────────── train ────────────────── 1

With k folds, everything except test is cut into k pieces of one length, and one of them is validation. A unit
is a sample or a whole group (the X-rays of one patient); it has one position, so no group is in two splits.

Each class gets into every piece: where the positions leave a class out, one unit with that class moves over,
if the piece that gives it away keeps all of its own classes. Only these few units may move when images are
added. The price is that shares are met on average, not to the image: a class of 1,000 has 100 ± 10 in a
tenth. For small sets `exact` meets them within one unit (stratify.py). That depends on the other samples, so
units of an earlier version keep their splits, and the new units make up for what is missing:

    version 1   100 units: test 10, validation 10, train 80
    version 2   + 50 units: 5, 5 and 40 of the new ones; none of the old ones moves

Columns, not objects: a million samples need only hashing and numpy, unless units have to move.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.columns import PIECE, Rows, Strings, Text
from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.split_rule import SplitRule
from ddpipe.prepare.stratify import exact_shares
from ddpipe.sources.sample_columns import Samples

Places = NDArray[np.int8]
"""Numbers of splits in `SPLITS`; `UNKNOWN` where there is none."""

UNKNOWN = -1

Classes = Mapping[int, set[int]]
"""The classes that each unit shows, by its number, in the order of the positions."""

REST = "rest"
"""All folds together."""


def split_samples(samples: Samples, rule: SplitRule, classes: int, earlier: Places | None = None) -> Places:
    """Assign samples to splits."""
    names, unit = numbered_units(samples)
    given = given_splits(samples)
    pieces = rule.pieces(given)
    position = positions(names, rule.seed)
    piece = piece_at(position, pieces)
    unit_shown, label = shown_by_units(samples, unit, classes)
    held = np.zeros((len(pieces), classes), np.int64)
    np.add.at(held, (piece[unit_shown], label), 1)
    if rule.exact or (held[:, held.any(axis=0)] == 0).any():
        free = np.unique(unit[_is_ours(samples)])
        shown: Classes = {
            number: set() for number in free[np.lexsort((names[free], position[free]))].tolist()
        }
        for number, index in zip(unit_shown.tolist(), label.tolist(), strict=True):
            shown[number].add(index)
        kept = _kept(unit, earlier) if rule.exact and earlier is not None else {}
        order = list(pieces)
        if rule.exact:
            assigned = _exact(shown, pieces, kept)
        else:
            assigned = {number: order[piece[number]] for number in shown}
        _fill(assigned, order[::-1], shown, kept)
        for number, name in assigned.items():
            piece[number] = order.index(name)
    places = np.array([SPLITS.index(rule.split_of(name)) for name in pieces], np.int8)[piece[unit]]
    for split in set(given) - {"", "train"}:
        places[samples.splits == split.encode()] = SPLITS.index(split)
    return places


def positions(names: Text, seed: int) -> NDArray[np.float64]:
    """Places of units, uniform on the line from 0 to 1, shape (units,)."""
    prefix, size, found = f"{seed}/".encode(), 6, np.empty(len(names))
    weights = 256.0 ** -np.arange(1, size + 1)
    for start in range(0, len(names), PIECE):
        piece = names[start : start + PIECE].tolist()
        digests = b"".join([sha256(prefix + name).digest()[:size] for name in piece])
        found[start : start + PIECE] = np.frombuffer(digests, np.uint8).reshape(-1, size) @ weights
    return found


def piece_at(position: NDArray[np.float64], pieces: Mapping[str, float]) -> Rows:
    """The number of the piece in which each position lies, shape (n,).

    Args:
        position: From 0 to 1, shape (n,).
        pieces: Shares of the whole, by name.
    """
    *ends, _ = accumulate(pieces.values())
    return np.searchsorted(ends, position, side="right")


def numbered_units(samples: Samples) -> tuple[Text, Rows]:
    """The units, and the number of each sample's."""
    if not (samples.groups != b"").any():  # each is a unit of its own
        return samples.ids, np.arange(len(samples))
    return np.unique(samples.units, return_inverse=True)


def given_splits(samples: Samples) -> list[str]:
    """The splits that the source itself puts samples into; "" for those that it does not."""
    found, rest = [], samples.splits
    while len(rest):  # there are four at most: sorting a million would take longer
        found.append(rest[0])
        rest = rest[rest != rest[0]]
    return list(Strings(np.sort(np.array(found, np.bytes_))))


def shown_by_units(samples: Samples, unit: Rows, classes: int) -> tuple[Rows, Rows]:
    """Pairs of a unit that is ours to assign and a class that it shows, each pair once.

    Args:
        samples: All samples.
        unit: The unit of each, (samples,).
        classes: Number of classes.
    """
    free = np.flatnonzero(_is_ours(samples))
    labels = samples.labels[free]
    if labels.ndim > 1:
        row, label = np.nonzero(labels)
        pairs = unit[free][row] * classes + label
    else:
        pairs = unit[free] * classes + labels
    is_grouped = len(unit) > 0 and int(unit[-1]) != len(unit) - 1
    return np.divmod(np.unique(pairs) if is_grouped else pairs, classes)


def _is_ours(samples: Samples) -> NDArray[np.bool_]:
    """Whether the source leaves the split of a sample to us; a missing validation split comes from train."""
    ours: NDArray[np.bool_] = (samples.splits == b"") | (samples.splits == b"train")
    return ours


def _kept(unit: Rows, earlier: Places) -> dict[int, str]:
    """The split in which each unit was; of a group that was torn then, test comes first."""
    places = np.full(int(unit.max(initial=-1)) + 1, UNKNOWN, np.int8)
    np.maximum.at(places, unit, earlier)  # SPLITS ends with test
    known = np.flatnonzero(places != UNKNOWN)
    return {int(number): SPLITS[places[number]] for number in known}


def _exact(shown: Classes, pieces: Mapping[str, float], kept: Mapping[int, str]) -> dict[int, str]:
    """Units by exact shares. Folds are cut from what test leaves, so that they never change what test is."""
    folds = {piece: share for piece, share in pieces.items() if piece.startswith("fold ")}
    if not folds:
        return exact_shares(
            shown, pieces, {number: kept[number] for number in kept if kept[number] in pieces}
        )
    whole = {piece: share for piece, share in pieces.items() if piece not in folds} | {
        REST: sum(folds.values())
    }
    before = {number: split if split in whole else REST for number, split in kept.items()}
    assigned = exact_shares(shown, whole, before)
    rest = {number: found for number, found in shown.items() if assigned[number] == REST}
    return assigned | exact_shares(rest, {piece: share / whole[REST] for piece, share in folds.items()})


def _fill(assigned: dict[int, str], pieces: Sequence[str], shown: Classes, kept: Mapping[int, str]) -> None:
    """Move units, so that every class is in every piece as far as possible; the rarest come first."""
    holders: dict[int, list[int]] = defaultdict(list)
    counts: dict[str, Counter[int]] = {piece: Counter() for piece in pieces}
    for unit, found in shown.items():
        counts[assigned[unit]].update(found)
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
                if assigned[unit] == giver and all(counts[giver][other] > 1 for other in shown[unit])
            ]
            for unit in sorted(spare, key=kept.__contains__)[:1]:
                counts[giver].subtract(shown[unit])
                counts[piece].update(shown[unit])
                assigned[unit] = piece
