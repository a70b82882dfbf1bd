"""Splits: stratified, the same for the same seed and names, and the same in the next version."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from splits import FRACTIONS, assign

from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.splitting import split_samples
from ddpipe.sources.sample import Sample
from ddpipe.sources.samples import Samples


def _counts(*sizes: int) -> list[tuple[int, ...]]:
    """How many images of each class, of these sizes, are in each split."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    places = assign([f"{number}.png" for number in range(len(labels))], labels)
    found = Counter(zip(labels, places, strict=True))
    return [tuple(found[label, split] for split in SPLITS) for label in range(len(sizes))]


def test_each_class_has_its_share_to_one_image() -> None:
    assert _counts(380, 20) == [(304, 38, 38), (16, 2, 2)]
    assert _counts(*[30] * 40) == [(24, 3, 3)] * 40
    assert _counts(10, 10) == [(8, 1, 1)] * 2


@pytest.mark.parametrize("sizes", [[3] * 5, [14] * 100, [5] * 20, [1000, 7, 33, 4], [3, 3]])
def test_splits_as_a_whole_have_their_shares_too(sizes: list[int]) -> None:
    """To one image, or a tenth more where classes would be missing otherwise."""
    found = np.array(_counts(*sizes))
    expected = np.outer(sizes, list(FRACTIONS.values()))
    assert (np.abs(found - expected) <= 1 + 1e-9).all()
    assert (
        found.sum(axis=0)[1:] <= np.maximum(expected.sum(axis=0) * 1.1, expected.sum(axis=0) + 1)[1:]
    ).all()
    assert found.sum(axis=0).all()


def test_a_rare_class_is_in_every_split_if_that_is_its_share() -> None:
    assert _counts(395, 5) == [(317, 39, 39), (3, 1, 1)]
    assert _counts(*[5] * 10, 10_000)[:10] == [(3, 1, 1)] * 10


def test_the_same_seed_gives_the_same_splits_and_another_others() -> None:
    ids, labels = [f"{number}.png" for number in range(400)], [number % 4 for number in range(400)]
    assert assign(ids, labels) == assign(ids, labels)
    assert assign(ids, labels) != assign(ids, labels, seed=1)


def test_the_order_of_the_samples_does_not_matter() -> None:
    """Some show two classes of fifteen."""
    ids = [f"{index}.png" for index in range(60)]
    labels = [
        tuple(int(index % 15 == label or index % 7 == label) for label in range(15)) for index in range(60)
    ]
    assert assign(ids[::-1], labels[::-1]) == assign(ids, labels)[::-1]


@pytest.mark.parametrize("fixed", ["test", "validation"])
def test_a_split_that_the_source_lacks_gets_its_share_of_what_is_left(fixed: str) -> None:
    """A tenth, with eight tenths for training."""
    ids = [f"{index}.png" for index in range(9000)]
    given = ["train"] * 8100 + [fixed] * 900
    counts = Counter(assign(ids, [index % 3 for index in range(9000)], given=given))
    (ours,) = {"test", "validation"} - {fixed}
    assert counts == {"train": 7200, ours: 900, fixed: 900}


@pytest.mark.parametrize(
    "given", [("train", "test"), ("train", "validation"), ("train", "validation", "test")]
)
def test_what_the_source_keeps_apart_stays_apart(given: tuple[str, ...]) -> None:
    """What it calls test stays test; a split that it lacks comes out of its training images."""
    ids = [f"{index}.png" for index in range(300)]
    fixed = [given[index % len(given)] for index in range(300)]
    places = assign(ids, [0] * 300, given=fixed)
    for place, split in zip(places, fixed, strict=True):
        assert place == split or (split == "train" and place not in given)
    assert set(places) == set(SPLITS)


@pytest.mark.parametrize(("patients", "most"), [(3000, 2), (500, 5)])
def test_each_of_several_labels_has_its_share_nearly(patients: int, most: int) -> None:
    """3,000 X-rays with 11 labels, as rare as one in a hundred, alone or of 500 patients."""
    random = np.random.default_rng(0)
    labels = [tuple(map(int, row)) for row in random.random((3000, 11)) < np.linspace(0.01, 0.5, 11)]
    groups = [f"patient-{number}" for number in random.permutation(3000) % patients]
    places = assign(groups, labels)
    assert len({*zip(groups, places, strict=True)}) == patients, "no group is in two splits"
    shown = {group: np.zeros(11, int) for group in groups}
    for group, label in zip(groups, labels, strict=True):
        shown[group] |= np.array(label)
    split_of = dict(zip(groups, places, strict=True))
    total = sum(shown.values())
    for split, share in FRACTIONS.items():
        held = sum(found for group, found in shown.items() if split_of[group] == split)
        assert np.abs(held - total * share).max() < most
        assert np.min(held) > 0, "every label is in every split"


def test_no_image_of_an_earlier_version_moves() -> None:
    """15 nights of new X-rays with 5 labels; each label keeps its share."""
    random = np.random.default_rng(0)
    units, labels, before = list[str](), list[tuple[int, ...]](), dict[str, str]()
    for _ in range(15):
        units += [str(len(units) + number) for number in range(60)]
        labels += [tuple(map(int, row)) for row in random.random((60, 5)) < np.linspace(0.1, 0.5, 5)]
        after = dict(zip(units, assign(units, labels, earlier=before), strict=True))
        assert before == {unit: after[unit] for unit in before}
        before = after
        for label in range(5):
            holders = [unit for unit, shown in zip(units, labels, strict=True) if shown[label]]
            counts = Counter(after[unit] for unit in holders)
            for split, share in FRACTIONS.items():
                assert abs(counts[split] - share * len(holders)) < 4


def test_many_samples_are_assigned_in_columns() -> None:
    """200,000 in at most a few seconds even beside other work: no object for each of them."""
    count = 200_000
    ids, none = np.arange(count).astype("S8"), np.full(count, b"", "S1")
    samples = Samples(ids, np.arange(count) % 1000, none, none, none, none)
    found = np.bincount(split_samples(samples, FRACTIONS, 0, 1000))
    assert found.tolist() == [160_000, 20_000, 20_000]


def test_no_samples_have_no_splits() -> None:
    assert len(split_samples(Samples.of(list[Sample]()), FRACTIONS, 0, 2)) == 0
