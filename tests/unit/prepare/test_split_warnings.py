"""Warnings about a dataset that can be trained on and yet may not be what somebody wanted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddpipe.prepare.split_warnings import interval_width, split_warnings
from ddpipe.sources.sample import Sample
from ddpipe.sources.sample_columns import Samples

PLENTY = 200


def samples(count: int, groups: int = 0) -> Samples:
    return Samples.of(
        Sample(id=f"{number}", label=0, stamp="", group=f"patient {number % groups}" if groups else "")
        for number in range(count)
    )


def warnings_of(
    classes: Sequence[str] = ("cat", "dog"), count: int = PLENTY, groups: int = 0, validation: int = PLENTY
) -> list[str]:
    everything = samples(count, groups)
    return list(
        split_warnings(
            classes, {"train": everything, "validation": samples(validation), "test": samples(PLENTY)}
        )
    )


def test_a_good_set_has_no_warning() -> None:
    assert warnings_of(groups=PLENTY // 2) == []


@pytest.mark.parametrize(("count", "width"), [(1, 0.89), (10, 0.53), (93, 0.20), (1000, 0.06)])
def test_the_interval_of_an_accuracy_narrows_with_the_images(count: int, width: float) -> None:
    assert interval_width(count) == pytest.approx(width, abs=0.01)


def test_a_split_of_few_images_is_a_warning() -> None:
    (only,) = warnings_of(validation=10)
    assert only.startswith("the validation split has 10 images")
    assert "up to 0.53 wide" in only
    assert warnings_of(validation=93) == []
    assert warnings_of(validation=0) == []


def test_groups_of_one_image_each_are_a_warning() -> None:
    (only,) = warnings_of(groups=PLENTY)
    assert "'patient 0'" in only


@pytest.mark.parametrize("alike", [("cat", "Cat"), ("guinea pig", "guineapig"), ("cat", "cat ")])
def test_classes_that_differ_by_case_or_spaces_are_a_warning(alike: tuple[str, str]) -> None:
    (only,) = warnings_of(classes=("dog", *alike))
    assert all(repr(name) in only for name in alike)
    assert "'dog'" not in only
