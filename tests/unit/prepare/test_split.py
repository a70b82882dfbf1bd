"""Splits: stratified, from the seed and the id alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from splits import assign

from ddpipe.data.columns import text
from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.split_rule import SplitRule
from ddpipe.prepare.splitting import piece_at, positions

RULE = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1})


def _assigned(count: int, *, classes: int = 4, rule: SplitRule = RULE) -> dict[str, str]:
    ids = [f"{index % classes}/{index}.png" for index in range(count)]
    return dict(zip(ids, assign(ids, [index % classes for index in range(count)], rule), strict=True))


def _alone(position: float, rule: SplitRule, *given: str) -> str:
    """The split of a unit whose class is everywhere."""
    pieces = rule.pieces(given)
    return rule.split_of(list(pieces)[int(piece_at(np.array([position]), pieces)[0])])


def test_the_same_seed_gives_the_same_splits_and_another_others() -> None:
    assert _assigned(400) == _assigned(400)
    assert _assigned(400) != _assigned(400, rule=replace(RULE, seed=1))


def test_adding_images_does_not_move_old_ones() -> None:
    before, after = _assigned(400), _assigned(1000)
    assert before == {name: after[name] for name in before}


def test_the_order_of_the_samples_does_not_matter() -> None:
    ids = [f"{index}.png" for index in range(50)]
    forwards = assign(ids, [0] * 50, RULE)
    assert assign(ids[::-1], [0] * 50, RULE) == forwards[::-1]


def test_the_order_of_samples_does_not_matter_in_small_classes() -> None:
    """So small that most have to be moved into some split; some samples show two of them."""
    ids = [f"{index}.png" for index in range(60)]
    labels = [
        tuple(int(index % 15 == label or index % 7 == label) for label in range(15)) for index in range(60)
    ]
    forwards = assign(ids, labels, RULE)
    assert assign(ids[::-1], labels[::-1], RULE) == forwards[::-1]
    for split in SPLITS:
        rows = [label for label, place in zip(labels, forwards, strict=True) if place == split]
        assert np.sum(rows, axis=0).all()


@pytest.mark.parametrize(
    ("position", "rule", "split"),
    [
        (0.0, RULE, "test"),
        (0.0999, RULE, "test"),
        (0.1, RULE, "validation"),
        (0.1999, RULE, "validation"),
        (0.2, RULE, "train"),
        (0.9999, RULE, "train"),
        (0.0999, replace(RULE, folds=3, fold=0), "test"),
        (0.1, replace(RULE, folds=3, fold=0), "validation"),
        (0.3999, replace(RULE, folds=3, fold=0), "validation"),
        (0.4001, replace(RULE, folds=3, fold=0), "train"),
        (0.4001, replace(RULE, folds=3, fold=1), "validation"),
        (0.7001, replace(RULE, folds=3, fold=2), "validation"),
        (0.9999, replace(RULE, folds=3, fold=2), "validation"),
    ],
)
def test_the_fractions_cut_the_line_of_positions(position: float, rule: SplitRule, split: str) -> None:
    assert _alone(position, rule) == split


@pytest.mark.parametrize("fixed", ["test", "validation"])
def test_a_split_that_the_source_lacks_gets_its_share_of_what_is_left(fixed: str) -> None:
    """A tenth, with eight tenths for training."""
    ids = [f"{index}.png" for index in range(9000)]
    given = ["train"] * 8100 + [fixed] * 900
    counts = Counter(assign(ids, [index % 3 for index in range(9000)], RULE, given))
    (ours,) = {"test", "validation"} - {fixed}
    assert counts[fixed] == 900
    assert counts[ours] == pytest.approx(8100 / 9, rel=0.1)
    assert _alone(0.11, RULE, fixed) == ours
    assert _alone(0.112, RULE, fixed) == "train"


@pytest.mark.parametrize("fixed", ["test", "validation"])
def test_folds_are_cut_from_what_the_source_does_not_place(fixed: str) -> None:
    ids = [f"{index}.png" for index in range(4000)]
    given = ["train"] * 3600 + [fixed] * 400
    rule = replace(RULE, folds=4, fold=1)
    counts = Counter(assign(ids, [0] * 4000, rule, given))
    if fixed == "test":
        assert counts["validation"] == pytest.approx(900, rel=0.15)
    else:
        assert counts == Counter(train=counts["train"], validation=400, test=counts["test"])
        assert counts["test"] == pytest.approx(400, rel=0.15)


def test_no_split_gives_the_last_sample_of_a_class_away() -> None:
    random = np.random.default_rng(0)
    for seed in range(200):
        ids = [f"{seed}/{index}.png" for index in range(8)]
        labels = [tuple(map(int, row)) for row in random.random((8, 3)) < 0.4]
        before = [_alone(positions(text([name]), 0)[0], RULE) for name in ids]
        after = assign(ids, labels, RULE)
        for split in SPLITS:
            had, has = (
                np.any([label for label, place in zip(labels, places, strict=True) if place == split], axis=0)
                for places in (before, after)
            )
            assert np.all(has >= had)


def test_all_classes_of_a_group_count() -> None:
    """The first image of three groups shows the rare class, the last one another."""
    groups = [f"patient-{number // 2}" for number in range(12)]
    labels = [int(number % 2 or number > 5) for number in range(12)]
    for seed in range(20):
        places = assign(groups, labels, replace(RULE, seed=seed))
        assert {place for place, label in zip(places, labels, strict=True) if not label} == set(SPLITS)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_rarest_class_is_served_first(order: tuple[int, ...]) -> None:
    """Here any other order leaves a split without one of the classes."""
    rows_of_classes = [(1, 1, 0), (1, 1, 1), (1, 0, 1), (0, 0, 1), (0, 1, 1)]
    labels = [tuple(row[column] for column in order) for row in rows_of_classes]
    places = assign(["0", "1", "2", "3", "4"], labels, RULE)
    for split in SPLITS:
        rows = [label for label, place in zip(labels, places, strict=True) if place == split]
        assert np.any(rows, axis=0).all()


def test_each_class_has_its_share_in_each_split() -> None:
    assigned = _assigned(4000)
    shares = Counter((name.split("/")[0], split) for name, split in assigned.items())
    for (_, split), count in shares.items():
        assert count / 1000 == pytest.approx(RULE.fractions[split], abs=0.03)


@pytest.mark.parametrize("size", [3, 4, 10])
@pytest.mark.parametrize("seed", range(20))
def test_no_split_of_a_small_class_is_empty(size: int, seed: int) -> None:
    splits = assign([f"{index}.png" for index in range(size)], [0] * size, replace(RULE, seed=seed))
    assert set(splits) == set(SPLITS)


def test_no_group_is_in_two_splits() -> None:
    """3,000 X-rays of 500 patients with 11 labels, as rare as one in a hundred."""
    random = np.random.default_rng(0)
    patients = [f"patient-{number}" for number in random.integers(0, 500, 3000)]
    labels = [tuple(map(int, row)) for row in random.random((3000, 11)) < np.linspace(0.01, 0.5, 11)]
    places = assign(patients, labels, RULE)
    assert len({*zip(patients, places, strict=True)}) == len({*patients})
    for split in SPLITS:
        rows = [label for label, place in zip(labels, places, strict=True) if place == split]
        assert len(rows) / 3000 == pytest.approx(RULE.fractions[split], abs=0.03)
        assert np.sum(rows, axis=0).all(), "every label is in every split"


def test_each_sample_is_in_the_validation_split_of_one_fold() -> None:
    folds = [_assigned(1000, rule=replace(RULE, folds=5, fold=fold)) for fold in range(5)]
    for name in folds[0]:
        found = Counter(fold[name] for fold in folds)
        assert found in (Counter(test=5), Counter(validation=1, train=4))
    sizes = [Counter(fold.values())["validation"] for fold in folds]
    assert all(size == pytest.approx(180, abs=40) for size in sizes)


@pytest.mark.parametrize(
    "given", [("train", "test"), ("train", "validation"), ("train", "validation", "test")]
)
def test_what_the_source_keeps_apart_stays_apart(given: tuple[str, ...]) -> None:
    """What it calls test stays test; a split that it lacks comes out of its training images."""
    ids = [f"{index}.png" for index in range(300)]
    fixed = [given[index % len(given)] for index in range(300)]
    places = assign(ids, [0] * 300, RULE, fixed)
    for place, split in zip(places, fixed, strict=True):
        assert place == split or (split == "train" and place not in given)
    assert set(places) == set(SPLITS)
