"""Splits: what holds for any set of samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from splits import assign, shown

from ddpipe.data.columns import text
from ddpipe.data.manifest import SPLITS, Label
from ddpipe.sources.sample import Sample
from ddpipe.sources.samples import Finder
from ddpipe.sources.samples import Samples as Columns

fractions = st.builds(
    lambda validation, test: {"train": 1 - validation - test, "validation": validation, "test": test},
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
)

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


def _places(
    found: Samples, shares: Mapping[str, float], earlier: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The split of each group, which has only one."""
    units = [unit for unit, _ in found]
    splits: dict[str, set[str]] = defaultdict(set)
    places = assign(units, [label for _, label in found], shares, earlier=earlier)
    for unit, place in zip(units, places, strict=True):
        splits[unit].add(place)
    assert all(len(places) == 1 for places in splits.values())
    return {unit: place for unit, (place,) in splits.items()}


@given(samples(), fractions, st.randoms(use_true_random=False))
def test_neither_the_order_of_the_samples_nor_their_copies_matter(
    found: Samples, shares: Mapping[str, float], random: object
) -> None:
    shuffled = [*found, *found[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _places(shuffled, shares) == _places(found, shares)


@given(samples(), fractions)
def test_shares_of_each_combination_are_met_to_one_unit_and_no_split_is_empty(
    found: Samples, shares: Mapping[str, float]
) -> None:
    """But for the few that give a class, or anything at all, to a split."""
    units: dict[str, frozenset[int]] = {}
    for unit, label in found:
        units[unit] = units.get(unit, frozenset()) | shown(label)
    places = _places(found, shares)
    assert places.keys() == units.keys()
    totals = Counter(units.values())
    counts = Counter((places[unit], classes) for unit, classes in units.items())
    for split, share in shares.items():
        for classes, total in totals.items():
            assert abs(counts[split, classes] - total * share) < 3
    if len(units) >= len(SPLITS):
        assert set(places.values()) == set(SPLITS)


@given(samples(), st.lists(samples(), max_size=4), fractions)
def test_units_of_earlier_versions_never_move(
    old: Samples, added: list[Samples], shares: Mapping[str, float]
) -> None:
    found, before = old, _places(old, shares)
    for new in added:
        found = [*found, *new]
        after = _places(found, shares, before)
        assert before == {unit: after[unit] for unit in before}
        before = after


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
            else (seed + number) % 3,
            stamp=str(number),
            group=f"patient {number // 3}" if grouped and number % 5 else "",
            split=splits[number * 7 % len(splits)],
        )
        for number in range(count)
    ]


@given(many_samples())
def test_samples_come_back_from_columns_by_number_and_by_id(samples: list[Sample]) -> None:
    columns = Columns.of(samples)
    assert list(columns) == samples
    backwards = text(sample.id for sample in reversed(samples))
    assert Finder(columns.ids).rows(backwards).tolist() == list(range(len(samples)))[::-1]
    assert Finder(columns.ids).rows(text(["no such id"])).tolist() == [-1]
