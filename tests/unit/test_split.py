"""Splits: stratified, from the seed and the id alone."""

from __future__ import annotations

from collections import Counter

import pytest

from ddpipe.data.manifest import SPLITS
from ddpipe.prepare.split import assign

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def _assigned(count: int, *, classes: int = 4, seed: int = 0) -> dict[str, str]:
    ids = [f"{index % classes}/{index}.png" for index in range(count)]
    return dict(
        zip(ids, assign(ids, [index % classes for index in range(count)], FRACTIONS, seed), strict=True)
    )


def test_the_same_seed_gives_the_same_splits_and_another_others() -> None:
    assert _assigned(400) == _assigned(400)
    assert _assigned(400) != _assigned(400, seed=1)


def test_adding_images_does_not_move_old_ones() -> None:
    before, after = _assigned(400), _assigned(1000)
    assert before == {name: after[name] for name in before}


def test_the_order_of_the_samples_does_not_matter() -> None:
    ids = [f"{index}.png" for index in range(50)]
    forwards = assign(ids, [0] * 50, FRACTIONS, 0)
    assert assign(ids[::-1], [0] * 50, FRACTIONS, 0) == forwards[::-1]


def test_each_class_has_its_share_in_each_split() -> None:
    assigned = _assigned(4000)
    shares = Counter((name.split("/")[0], split) for name, split in assigned.items())
    for (_, split), count in shares.items():
        assert count / 1000 == pytest.approx(FRACTIONS[split], abs=0.03)


@pytest.mark.parametrize("size", [3, 4, 10])
@pytest.mark.parametrize("seed", range(20))
def test_no_split_of_a_small_class_is_empty(size: int, seed: int) -> None:
    splits = assign([f"{index}.png" for index in range(size)], [0] * size, FRACTIONS, seed)
    assert set(splits) == set(SPLITS)
