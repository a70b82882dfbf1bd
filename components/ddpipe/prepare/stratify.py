"""Exact shares: each class, and each combination of classes, within one unit of its share of every piece.

The units that show exactly the same classes are a stratum. Each stratum first gives every piece its share,
rounded down; that is nearly all units. What is left over, less than one unit for each piece, balances the
classes: no two of a stratum go to one piece, and each goes where its classes are missed most. While a class
is then still a unit or more off, leftovers swap places. Units that may not move count as given already; if a
piece has too many of them, the others share the rest.

Source: after Sechidis, Tsoumakas, Vlahavas, "On the stratification of multi-label data", 2011, who assign the
rarest class first and each unit to where it is missed most; the strata and the swaps are ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple, TypeVar

Unit = TypeVar("Unit")

Stratum = frozenset[int]
"""The classes that a unit shows."""

EVERY = -1
"""A class that all units show: so the sizes of the pieces are met as the shares of the classes are."""

NOBODY: Stratum = frozenset()

SWAPS = 1000
"""At most: where units are few and classes many, some shares cannot be met."""

TRIED = 40
"""Leftovers on each side of a swap."""

TINY = 1e-9
"""What sums of shares are off by rounding."""

Missed = Mapping[str, dict[int, float]]
"""How many units of each class a piece lacks; below 0: has too many."""

Held = Mapping[str, dict[Stratum, None]]
"""The strata that have a leftover in a piece, in an order that is always the same."""


class _Swap(NamedTuple):
    """Leftovers that change places; `back` may be `NOBODY`."""

    giver: str
    taker: str
    out: Stratum
    back: Stratum


def exact_shares(
    classes: Mapping[Unit, set[int]], pieces: Mapping[str, float], kept: Mapping[Unit, str] | None = None
) -> dict[Unit, str]:
    """Assign units to pieces."""
    fixed = {unit: piece for unit, piece in (kept or {}).items() if unit in classes}
    strata: dict[Stratum, list[Unit]] = {}
    for unit, shown in classes.items():
        members = strata.setdefault(frozenset({*shown, EVERY}), [])
        if unit not in fixed:
            members.append(unit)
    held = Counter((frozenset({*classes[unit], EVERY}), piece) for unit, piece in fixed.items())
    missed: Missed = {piece: defaultdict(float) for piece in pieces}
    whole: dict[Stratum, dict[str, int]] = {}
    for stratum, members in strata.items():
        total = len(members) + sum(held[stratum, piece] for piece in pieces)
        wanted = {piece: total * share - held[stratum, piece] for piece, share in pieces.items()}
        room = {piece: max(0.0, units) for piece, units in wanted.items()}
        scale = len(members) / sum(room.values()) if sum(room.values()) > TINY else 0.0
        whole[stratum] = {piece: int(units * scale + TINY) for piece, units in room.items()}
        for piece, label in product(pieces, stratum):
            missed[piece][label] += wanted[piece] - whole[stratum][piece]
    leftovers = _leftovers_of(
        {stratum: len(members) - sum(whole[stratum].values()) for stratum, members in strata.items()}, missed
    )
    places: dict[Unit, str] = dict(fixed)
    for stratum, members in strata.items():
        rest = iter(members)
        for piece, count in whole[stratum].items():
            places |= {next(rest): piece for _ in range(count + (stratum in leftovers[piece]))}
    return places


def _leftovers_of(leftovers: Mapping[Stratum, int], missed: Missed) -> Held:
    """The pieces that get what is left over of each stratum; `missed` follows."""
    held: Held = {piece: {} for piece in missed}
    counts: Counter[int] = Counter()
    for stratum, count in leftovers.items():
        counts.update(dict.fromkeys(stratum, count))
    for stratum in sorted(leftovers, key=lambda stratum: min(counts[label] for label in stratum)):
        wants = {piece: sum(missed[piece][label] for label in stratum) for piece in missed}
        for piece in sorted(wants, key=lambda piece: -wants[piece])[: leftovers[stratum]]:
            _put(stratum, piece, held, missed)
    for _ in range(SWAPS):
        swap = next(_swaps(held, missed), None)
        if swap is None:
            break
        for stratum, origin, target in (
            (swap.out, swap.giver, swap.taker),
            (swap.back, swap.taker, swap.giver),
        ):
            if stratum:
                del held[origin][stratum]
                for label in stratum:
                    missed[origin][label] += 1
                _put(stratum, target, held, missed)
    return held


def _put(stratum: Stratum, piece: str, held: Held, missed: Missed) -> None:
    held[piece][stratum] = None
    for label in stratum:
        missed[piece][label] -= 1


def _swaps(held: Held, missed: Missed) -> Iterator[_Swap]:
    """The best swap for each class that is a unit or more off, if it makes the whole better."""
    for label in next(iter(missed.values()), ()):
        giver, taker = (choose(missed, key=lambda piece: missed[piece][label]) for choose in (min, max))
        if max(-missed[giver][label], missed[taker][label]) < 1 - TINY:
            continue

        def cost(out: Stratum, back: Stratum, giver: str = giver, taker: str = taker) -> float:
            """By how much the sum of squares of what is missed changes, halved."""
            return sum(1 + missed[giver][label] - missed[taker][label] for label in out - back) + sum(
                1 + missed[taker][label] - missed[giver][label] for label in back - out
            )

        outs = [stratum for stratum in held[giver] if label in stratum and stratum not in held[taker]]
        backs = [stratum for stratum in held[taker] if label not in stratum and stratum not in held[giver]]
        pairs = product(
            sorted(outs, key=lambda stratum: cost(stratum, NOBODY))[:TRIED],
            [NOBODY, *sorted(backs, key=lambda stratum: cost(NOBODY, stratum))[:TRIED]],
        )
        best = min(pairs, key=lambda pair: cost(*pair), default=None)
        if best and cost(*best) < -TINY:
            yield _Swap(giver, taker, *best)
