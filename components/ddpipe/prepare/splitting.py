"""Which sample goes to which split: each class has its share of every split, to one image or group.

    class      images     train   validation   test        shares 0.8, 0.1, 0.1
    good          380       304           38     38
    defective      20        16            2      2

A unit is a sample or a whole group (the X-rays of one patient), so no group is in two splits. The units that
show exactly the same classes are a stratum. Each stratum first gives every split its share, rounded down;
that is nearly all units. What is left over, less than one unit for each split, goes where its classes are
missed most. A class that a split would lack gets one unit there, if that is still its share to within one.

A unit that an earlier version placed stays where it was, and new units make up for what is missing: otherwise
adding images would move old ones, and a test image that moves into training is a leak that no metric shows.

    version 1   100 units: train 80, validation 10, test 10
    version 2   + 50 units: 40, 5 and 5 of the new ones; none of the old ones moves

Which units of a stratum go where is decided by a hash of the seed and their names, not by their order. All is
counted by stratum and assigned by column: ten million samples are a few sorts.

Source: after Sechidis, Tsoumakas, Vlahavas, "On the stratification of multi-label data", 2011, who assign the
rarest class first and each unit to where it is missed most; strata and repeated passes are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.columns import Rows, Strings, Text, hashes, text
from ddpipe.data.index import open_index
from ddpipe.data.manifest import SPLITS, DatasetManifest, load_manifest
from ddpipe.data.versions import versions
from ddpipe.errors import DatasetError, StoreError, listed
from ddpipe.prepare.spec import compiled
from ddpipe.sources import Survey
from ddpipe.sources.base import error_for_source
from ddpipe.sources.samples import Finder, Samples
from ddpipe.storage import Store

log = logging.getLogger(__name__)

Places = NDArray[np.int8]  # numbers of splits in `SPLITS`; `UNKNOWN` where there is none

UNKNOWN = -1

TEST = SPLITS.index("test")

TINY = 1e-9  # what sums of shares are off by rounding
PASSES = 10  # times that leftovers are placed again at most; two or three suffice
MORE = 1.1  # times its share that a split may hold, so that it has an image of every class
MOST = 20  # versions that are looked at, from the newest on


def split_samples(
    samples: Samples, fractions: Mapping[str, float], seed: int, classes: int, earlier: Places | None = None
) -> Places:
    """Assign samples to splits; `earlier` are those of an earlier version, shape (samples,)."""
    names, unit = numbered_units(samples)
    given = given_splits(samples)
    ours = open_splits(given)
    shares = np.array([fractions[split] if split in ours else 0.0 for split in SPLITS])
    free = np.flatnonzero(np.bincount(unit[_is_ours(samples)]))
    place = np.full(len(names), UNKNOWN, np.int8)
    if earlier is not None:
        np.maximum.at(place, unit, earlier)  # SPLITS ends with test: it wins where a group was torn then
        place[(place != UNKNOWN) & (shares[place] == 0)] = UNKNOWN
    strata = _Strata(free, *shown_by_units(samples, unit, classes), classes, len(names))
    counts = strata.counts(place[free], shares / shares.sum())
    todo = np.flatnonzero(place[free] == UNKNOWN)
    order = todo[np.lexsort((hashes(names[free[todo]], str(seed).encode()), strata.number[todo]))]
    number = strata.number[order]
    rank = np.arange(len(order)) - np.searchsorted(number, number)
    ends = counts[:, ::-1].cumsum(axis=1)  # test first, then validation; the rest is for training
    place[free[order]] = TEST - (rank >= ends[number, 0]) - (rank >= ends[number, 1])
    places = place[unit]
    for split in set(given) - {"", "train"}:
        places[samples.splits == split.encode()] = SPLITS.index(split)
    return places


class _Strata:
    """Units by the set of classes that they show; `number` is the stratum of each unit of `free`."""

    def __init__(self, free: Rows, shown: Rows, label: Rows, classes: int, units: int) -> None:
        key = np.zeros(units, np.uint64)
        # A sum of hashes stands for the set: wrapping is harmless, and so would be two sets with one sum.
        np.add.at(key, shown, hashes(np.arange(classes).astype(np.bytes_))[label])
        _, first, self.number = np.unique(key[free], return_index=True, return_inverse=True)
        example = np.full(units, -1)
        example[free[first]] = np.arange(len(first))
        of_examples = example[shown] >= 0
        # Every stratum also has a label that all units show: so the splits as a whole get their shares, too.
        stratum = np.concatenate([example[shown][of_examples], np.arange(len(first))])
        labels = np.concatenate([label[of_examples], np.full(len(first), classes)])
        order = np.argsort(stratum, kind="stable")
        self._stratum, self._label = stratum[order], labels[order]
        self._starts = np.searchsorted(self._stratum, np.arange(len(first) + 1))
        self._total = np.bincount(self.number, minlength=len(first))
        self._labels = classes + 1

    def counts(self, kept: Places, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """How many of the units that are not kept each split gets, by stratum: (strata, splits)."""
        held = np.zeros((len(self._total), len(SPLITS)), np.int64)
        np.add.at(held, (self.number[kept != UNKNOWN], kept[kept != UNKNOWN]), 1)
        wanted = self._total[:, None] * shares - held
        left = self._total - held.sum(axis=1)
        room = np.maximum(wanted, 0)  # a split with too many kept units gets none; the others share the rest
        scale = np.divide(left, room.sum(axis=1), out=np.zeros(len(left)), where=left > 0)
        whole = np.floor(room * scale[:, None] + TINY).astype(np.int64)
        left -= whole.sum(axis=1)
        self._cover(held + whole, whole, left, shares)
        counts: NDArray[np.int64] = whole + self._leftovers(wanted - whole, left, shares)
        return counts

    def _by_label(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of strata, summed for each label."""
        sums = np.zeros((self._labels, *values.shape[1:]), values.dtype)
        np.add.at(sums, self._label, values[self._stratum])
        return sums

    def _labels_of(self, stratum: int) -> Rows:
        return self._label[self._starts[stratum] : self._starts[stratum + 1]]

    def _cover(
        self,
        start: NDArray[np.int64],
        whole: NDArray[np.int64],
        left: NDArray[np.int64],
        shares: NDArray[np.float64],
    ) -> None:
        """Give each class a unit in each split, the rarest first, if its shares stay met to within one."""
        held, totals, every = self._by_label(start), self._by_label(self._total), self._labels - 1
        limits = np.maximum(totals[every] * shares * MORE, totals[every] * shares + 1)
        lacking = np.flatnonzero((totals > 0) & (held[:, shares > 0] == 0).any(axis=1))
        for label in lacking[np.lexsort((lacking, totals[lacking]))].tolist():
            strata = self._stratum[self._label == label]
            for split in np.flatnonzero(shares).tolist():
                if held[label, split] or (label != every and held[every, split] + 1 > limits[split]):
                    continue
                giver = int(held[label].argmax())
                for stratum in strata[np.argsort(left[strata] == 0, kind="stable")].tolist():
                    labels = self._labels_of(stratum)
                    own = labels[:-1] if label != every else labels[:0]
                    may_give = (held[own, giver] + TINY >= totals[own] * shares[giver]).all()
                    if left[stratum]:
                        left[stratum] -= 1
                    elif whole[stratum, giver] and may_give and held[every, giver] > 1:
                        whole[stratum, giver] -= 1
                        held[labels, giver] -= 1
                    else:
                        continue
                    whole[stratum, split] += 1
                    held[labels, split] += 1
                    break

    def _leftovers(
        self, missed_by_stratum: NDArray[np.float64], left: NDArray[np.int64], shares: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Where the units go that are left over; no split gets two of a stratum."""
        missed, totals = self._by_label(missed_by_stratum), self._by_label(self._total)
        placed = np.zeros(missed_by_stratum.shape, np.int64)
        some = np.flatnonzero(left)
        rarest = np.minimum.reduceat(totals[self._label], self._starts[:-1])[some] if len(some) else some
        order = some[np.lexsort((some, rarest))].tolist()
        for _ in range(PASSES):
            # Each goes where it lowers the sum of squares of what is missed most.
            before = placed.copy()
            for stratum in order:
                labels = self._labels_of(stratum)
                missed[labels] += placed[stratum]
                scores = np.where(shares > 0, missed[labels].sum(axis=0), -np.inf)
                placed[stratum] = 0
                placed[stratum, np.argsort(-scores, kind="stable")[: left[stratum]]] = 1
                missed[labels] -= placed[stratum]
            if (placed == before).all():
                break
        return placed


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


def open_splits(given: Collection[str]) -> list[str]:
    """The splits that the source leaves to us; a missing one comes out of its images for training."""
    return [split for split in SPLITS if split == "train" or split not in given]


def shown_by_units(samples: Samples, unit: Rows, classes: int) -> tuple[Rows, Rows]:
    """Pairs of a unit that is ours to assign and a class that it shows, each pair once."""
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
    return np.isin(samples.splits, (b"", b"train"))


def kept_places(
    store: Store, name: str, rule: Mapping[str, Any], seed: int, samples: Samples
) -> tuple[Places | None, Mapping[str, Any]]:
    """Where the samples were in the newest version with the same choices, and the rule to record."""
    for manifest in _newest(store, name):
        if manifest.seed == seed and _facts(manifest.split_rule) == _facts(rule):
            places = _places(manifest, store, samples)
            own = {
                name: fact for name, fact in manifest.split_rule.items() if name not in {"groups", "given"}
            }
            return places, rule if (places == UNKNOWN).any() else own
    return None, rule


def warn_of_moved(store: Store, name: str, samples: Samples, places: Places) -> None:
    """Log how many test samples were used for training or validation in the newest version."""
    for manifest in _newest(store, name):
        before = _places(manifest, store, samples)
        moved = np.flatnonzero((places == TEST) & (before != TEST) & (before != UNKNOWN))
        if len(moved):
            log.warning(
                "%d of %d test images were not in the test split of version %s, such as %s: models that were "
                "trained on that version may know them",
                len(moved),
                np.count_nonzero(places == TEST),
                manifest.dataset_id[:12],
                Strings(samples.ids)[int(moved[0])],
            )
        return


def _newest(store: Store, name: str) -> Iterator[DatasetManifest]:
    """The newest versions that can be read, the newest first."""
    for version in versions(store, name)[: -MOST - 1 : -1]:
        try:
            yield load_manifest(version.uri)
        except (DatasetError, StoreError) as error:
            log.warning("version %s is ignored: %s", version.dataset_id[:12], error)


def _facts(rule: Mapping[str, Any]) -> tuple[object, ...]:
    """What of a split rule somebody has chosen; versions of before could also have folds."""
    return rule.get("fractions"), rule.get("group_pattern"), bool(rule.get("folds"))


def _places(manifest: DatasetManifest, store: Store, samples: Samples) -> Places:
    """The split of each sample in a version."""
    find = Finder(samples.ids)
    places = np.full(len(samples), UNKNOWN, np.int8)
    for number, split in enumerate(SPLITS):
        try:
            rows = find.rows(open_index(manifest, split, store).sample_ids.column)
        except (DatasetError, StoreError) as error:
            log.warning("the %s split of version %s is ignored: %s", split, manifest.dataset_id[:12], error)
            continue
        places[rows[rows >= 0]] = number
    return places


def grouped(survey: Survey, pattern: str, where: str) -> Survey:
    """The survey with the group of each sample."""
    search = compiled(pattern)
    ids = Strings(survey.samples.ids)
    groups = text(_found(search(name)) for name in ids)
    if unmatched := [ids[row] for row in np.flatnonzero(groups == b"")]:
        raise error_for_source(
            where,
            f"`group_pattern` {pattern!r} matches nothing in some paths, {listed(unmatched)}",
            "Correct the pattern: every image needs a group, even if that is its own name.",
        )
    return replace(survey, samples=replace(survey.samples, groups=groups))


def _found(match: Any) -> str:  # noqa: ANN401 - re2 has no types
    """The matched text, or the first group that took part."""
    if not match:
        return ""
    groups = match.groups()
    return next(filter(None, groups), "") if groups else str(match[0])
