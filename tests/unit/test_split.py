"""Splits: stratified, from the seed and the id alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.split import SplitRule, assign

RULE = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1})


def _assigned(count: int, *, classes: int = 4, rule: SplitRule = RULE) -> dict[str, str]:
    ids = [f"{index % classes}/{index}.png" for index in range(count)]
    return dict(zip(ids, assign(ids, [index % classes for index in range(count)], rule), strict=True))


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
