"""The split rule for columns: a million samples are dealt out without an object for each.

What the hashed positions put right already needs no more than that. Where units have to move, or shares have
to be exact, split.py deals them out one by one.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.columns import PIECE, Rows, Strings, Text
from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.split import SplitRule, assign
from ddpipe.sources.samples import Samples

Places = NDArray[np.int8]
"""Numbers of splits in `SPLITS`."""


def dealt(samples: Samples, rule: SplitRule, classes: int) -> Places:
    """The split of each sample.

    Args:
        samples: All that there are.
        rule: How.
        classes: How many there are.
    """
    names, unit = numbered_units(samples)
    given = given_splits(samples)
    pieces = rule.pieces(given)
    piece = np.searchsorted([*accumulate(pieces.values())][:-1], positions(names, rule.seed), side="right")
    unit_shown, label = shown_by_units(samples, unit, classes)
    held = np.zeros((len(pieces), classes), np.int64)
    np.add.at(held, (piece[unit_shown], label), 1)
    if rule.exact or (held[:, held.any(axis=0)] == 0).any():
        labels = [tuple(row) if samples.labels.ndim > 1 else row for row in samples.labels.tolist()]
        found = assign(list(Strings(samples.units)), labels, rule, list(Strings(samples.splits)))
        return np.array([SPLITS.index(split) for split in found], np.int8)
    places = np.array([SPLITS.index(rule.split_of(name)) for name in pieces], np.int8)[piece[unit]]
    for split in set(given) - {"", "train"}:
        places[samples.splits == split.encode()] = SPLITS.index(split)
    return places


def positions(names: Text, seed: int) -> NDArray[np.float64]:
    """Of units on the line from 0 to 1; see split.py."""
    prefix, size, found = f"{seed}/".encode(), 6, np.empty(len(names))
    weights = 256.0 ** -np.arange(1, size + 1)
    for start in range(0, len(names), PIECE):
        piece = names[start : start + PIECE].tolist()
        digests = b"".join([sha256(prefix + name).digest()[:size] for name in piece])
        found[start : start + PIECE] = np.frombuffer(digests, np.uint8).reshape(-1, size) @ weights
    return found


def numbered_units(samples: Samples) -> tuple[Text, Rows]:
    """The units, and the number of each sample's."""
    if not (samples.groups != b"").any():  # each is a unit of its own
        return samples.ids, np.arange(len(samples))
    return np.unique(samples.units, return_inverse=True)


def given_splits(samples: Samples) -> list[str]:
    """The splits that the source itself puts samples into; empty: it leaves that to us."""
    found, rest = [], samples.splits
    while len(rest):  # there are four at most: sorting a million would take longer
        found.append(rest[0])
        rest = rest[rest != rest[0]]
    return list(Strings(np.sort(np.array(found, np.bytes_))))


def shown_by_units(samples: Samples, unit: Rows, classes: int) -> tuple[Rows, Rows]:
    """Pairs of a unit that is ours to deal out and a class that it shows, each pair once."""
    free = np.flatnonzero((samples.splits == b"") | (samples.splits == b"train"))
    labels = samples.labels[free]
    if labels.ndim > 1:
        row, label = np.nonzero(labels)
        pairs = unit[free][row] * classes + label
    else:
        pairs = unit[free] * classes + labels
    is_grouped = len(unit) > 0 and int(unit[-1]) != len(unit) - 1
    return np.divmod(np.unique(pairs) if is_grouped else pairs, classes)
