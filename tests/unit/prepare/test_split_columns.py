"""Splits of a million samples, and samples as columns."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpipe.data.columns import text
from ddpipe.data.manifest import SPLITS
from ddpipe.prepare import splitting
from ddpipe.prepare.split_rule import SplitRule
from ddpipe.prepare.splitting import positions, split_samples
from ddpipe.sources.sample import Sample
from ddpipe.sources.sample_columns import Finder, Samples

RULE = SplitRule(fractions={"train": 0.8, "validation": 0.1, "test": 0.1})

CLASSES = 3


@st.composite
def many_samples(draw: st.DrawFn) -> list[Sample]:
    """With or without groups, splits of the source, several labels."""
    count, seed = draw(st.integers(1, 200)), draw(st.integers(0, 2**31))
    several, grouped = draw(st.booleans()), draw(st.booleans())
    splits = draw(st.sampled_from([("",), ("train", "test"), ("train", "validation"), ("train", *SPLITS)]))
    return [
        Sample(
            id=f"{seed}/{number}",
            label=tuple(int((seed >> shift) + number * shift) % 2 for shift in (3, 5, 7))
            if several
            else (seed + number) % CLASSES,
            stamp=str(number),
            group=f"patient {number // 3}" if grouped and number % 5 else "",
            split=splits[number * 7 % len(splits)],
        )
        for number in range(count)
    ]


def test_a_set_in_which_nothing_has_to_move_needs_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them would not fit into memory."""
    monkeypatch.setattr(splitting, "_fill", lambda *_: pytest.fail("unit by unit"))
    many = Samples.of(Sample(f"{number}", number % CLASSES, "") for number in range(1000))
    places = split_samples(many, RULE, CLASSES)
    assert {SPLITS[place] for place in places} == set(SPLITS)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))), st.integers(0, 2**32 - 1))
def test_positions_are_hashes_of_seed_and_name(name: str, seed: int) -> None:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    assert positions(text([name]), seed).tolist() == [int.from_bytes(digest[:6]) / 2**48]


@given(many_samples())
def test_samples_come_back_from_columns_by_number_and_by_id(samples: list[Sample]) -> None:
    columns = Samples.of(samples)
    assert list(columns) == samples
    backwards = text(sample.id for sample in reversed(samples))
    assert Finder(columns.ids).rows(backwards).tolist() == list(range(len(samples)))[::-1]
    assert Finder(columns.ids).rows(text(["no such id"])).tolist() == [-1]
