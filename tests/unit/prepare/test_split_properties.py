"""Splits: what holds for any set of samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from splits import assign, shown

from ddpipe.data.manifest import SPLITS, Label
from ddpipe.prepare.split_rule import SplitRule
from ddpipe.prepare.stratify import exact_shares

rules = st.builds(
    lambda validation, test, seed, exact: SplitRule(
        fractions={"train": 1 - validation - test, "validation": validation, "test": test},
        seed=seed,
        exact=exact,
    ),
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
    st.integers(0, 99),
    st.booleans(),
)
folded = st.builds(lambda rule, folds: replace(rule, folds=folds), rules, st.integers(2, 6))

Samples = list[tuple[str, Label]]
"""Group and label of each."""


@st.composite
def samples(draw: st.DrawFn) -> Samples:
    """Some of them alone, some in groups; of one class each, or of several."""
    count, classes = draw(st.integers(0, 40)), draw(st.integers(1, 4))
    group = st.integers(0, draw(st.integers(1, 120)))
    label = draw(
        st.sampled_from(
            [st.integers(0, classes - 1), st.tuples(*[st.integers(0, 1) for _ in range(classes)])]
        )
    )
    return draw(st.lists(st.tuples(group.map("patient {}".format), label), min_size=count, max_size=count))


def _places(found: Samples, rule: SplitRule) -> dict[str, str]:
    """The split of each group, which has only one."""
    units = [unit for unit, _ in found]
    splits: dict[str, set[str]] = defaultdict(set)
    for unit, place in zip(units, assign(units, [label for _, label in found], rule), strict=True):
        splits[unit].add(place)
    assert all(len(places) == 1 for places in splits.values())
    return {unit: place for unit, (place,) in splits.items()}


def _holders(found: Samples) -> dict[int, set[str]]:
    """The groups that show each class."""
    holders: dict[int, set[str]] = defaultdict(set)
    for unit, label in found:
        for index in shown(label):
            holders[index].add(unit)
    return holders


@given(samples(), rules, st.randoms(use_true_random=False))
def test_neither_the_order_of_the_samples_nor_their_copies_matter(
    found: Samples, rule: SplitRule, random: object
) -> None:
    shuffled = [*found, *found[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _places(shuffled, rule) == _places(found, rule)


@given(samples(), samples(), rules)
def test_adding_samples_moves_only_what_gave_a_split_its_class(
    old: Samples, new: Samples, rule: SplitRule
) -> None:
    """All others are where their own hash puts them, independent of the rest."""
    rule = replace(rule, exact=False)
    before, after = _places(old, rule), _places([*old, *new], rule)
    alone = {unit: _places([(unit, 0)], rule)[unit] for unit in before}
    for unit, place in before.items():
        assert after[unit] == place or alone[unit] != place or alone[unit] != after[unit]


@given(samples(), folded)
def test_each_sample_is_validated_on_in_one_fold_or_tested_on_in_all(found: Samples, rule: SplitRule) -> None:
    folds = [_places(found, replace(rule, fold=fold)) for fold in range(rule.folds)]
    for unit, _ in found:
        counts = Counter(places[unit] for places in folds)
        assert counts in (Counter(test=rule.folds), Counter(validation=1, train=rule.folds - 1))


@given(samples(), rules | folded)
def test_a_class_is_in_as_many_pieces_as_can_be(found: Samples, rule: SplitRule) -> None:
    """Where nobody shows two classes; else one may have to stay for the sake of another."""
    alone = [(str(number), label) for number, (_, label) in enumerate(found) if isinstance(label, int)]
    folds = [_places(alone, replace(rule, fold=fold)) for fold in range(max(1, rule.folds))]
    pieces = len(rule.pieces(()))
    for units in _holders(alone).values():
        seen = {tuple(places[unit] for places in folds) for unit in units}
        assert len(seen) == min(len(units), pieces)


@given(samples(), rules | folded)
def test_exact_shares_are_met_within_one_unit(found: Samples, rule: SplitRule) -> None:
    """Each class where nobody shows two, but for what gives a class to every piece; each combination else."""
    units: dict[str, frozenset[int]] = {}
    for unit, label in found:
        units[unit] = units.get(unit, frozenset()) | shown(label)
    pieces = rule.pieces(())
    places = exact_shares({unit: set(classes) for unit, classes in units.items()}, pieces)
    assert places.keys() == units.keys()
    totals = Counter(units.values())
    counts = Counter((places[unit], classes) for unit, classes in units.items())
    for piece, share in pieces.items():
        for classes, total in totals.items():
            assert abs(counts[piece, classes] - total * share) < 1 + 1e-6


@pytest.mark.parametrize("grouped", [False, True])
def test_exact_shares_of_labels_are_met_within_one_unit_too(grouped: bool) -> None:
    """3,000 X-rays with 11 labels, as rare as one in a hundred."""
    random = np.random.default_rng(0)
    labels = [tuple(map(int, row)) for row in random.random((3000, 11)) < np.linspace(0.01, 0.5, 11)]
    units = [f"patient {number}" for number in random.integers(0, 500, 3000)]
    found = list(zip(units if grouped else map(str, range(3000)), labels, strict=True))
    rule = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1}, exact=True)
    places = _places(found, rule)
    for holders in _holders(found).values():
        counts = Counter(places[unit] for unit in holders)
        for split, share in rule.fractions.items():
            assert abs(counts[split] - share * len(holders)) < 1


def test_an_exact_share_of_a_small_class_leaves_no_split_without_it() -> None:
    found: Samples = [(str(number), number % 20) for number in range(100)]
    rule = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1}, exact=True)
    places = _places(found, rule)
    for units in _holders(found).values():
        assert Counter(places[unit] for unit in units) == {"train": 3, "validation": 1, "test": 1}


@given(samples(), st.lists(samples(), max_size=4), rules | folded)
def test_exact_shares_keep_earlier_units(old: Samples, added: list[Samples], rule: SplitRule) -> None:
    """Unless a class would be missing in a split; here each image shows one."""
    rule = replace(rule, exact=True)
    found = [(unit, 0) for unit, _ in old]
    before = _places(found, rule)
    for new in added:
        found += [(unit, 0) for unit, _ in new]
        units = [unit for unit, _ in found]
        after = dict(zip(units, assign(units, [0] * len(units), rule, earlier=before), strict=True))
        if len(set(before.values())) == len(SPLITS):
            assert all((after[unit] == "test") == (split == "test") for unit, split in before.items())
            if not rule.folds:
                assert before == {unit: after[unit] for unit in before}
        before = after


def test_exact_shares_hold_while_versions_grow() -> None:
    """15 nights of new X-rays with 5 labels; nothing moves, and each label keeps its share."""
    random = np.random.default_rng(0)
    rule = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1}, exact=True)
    units, labels, before = list[str](), list[Label](), dict[str, str]()
    for _ in range(15):
        units += [str(len(units) + number) for number in range(60)]
        labels += [tuple(map(int, row)) for row in random.random((60, 5)) < np.linspace(0.1, 0.5, 5)]
        after = dict(zip(units, assign(units, labels, rule, earlier=before), strict=True))
        assert before == {unit: after[unit] for unit in before}
        before = after
        for holders in _holders(list(zip(units, labels, strict=True))).values():
            counts = Counter(after[unit] for unit in holders)
            for split, share in rule.fractions.items():
                assert abs(counts[split] - share * len(holders)) < 3
