"""Warnings about a dataset that can be trained on and yet may not be what somebody wanted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddpipe.prepare.checks import interval_width, split_warnings
from ddpipe.sources.sample import Sample
from ddpipe.sources.samples import Samples

PLENTY = 200


def samples(count: int, groups: int = 0) -> Samples:
    """Two classes in turns."""
    return Samples.of(
        Sample(
            id=f"{number}",
            label=number % 2,
            stamp="",
            group=f"patient {number % groups}" if groups else "",
        )
        for number in range(count)
    )


def warnings_of(
    classes: Sequence[str] = ("cat", "dog"), count: int = PLENTY, groups: int = 0, validation: int = PLENTY
) -> list[str]:
    splits = {"train": samples(count, groups), "validation": samples(validation), "test": samples(PLENTY)}
    return list(split_warnings(classes, splits))


def test_a_good_set_has_no_warning() -> None:
    assert warnings_of(groups=PLENTY // 2) == []


@pytest.mark.parametrize(("count", "width"), [(1, 0.89), (10, 0.53), (93, 0.20), (1000, 0.06)])
def test_the_interval_of_an_accuracy_narrows_with_the_images(count: int, width: float) -> None:
    assert interval_width(count) == pytest.approx(width, abs=0.01)


@pytest.mark.parametrize(("train", "validation"), [(39, PLENTY), (PLENTY, 19)])
def test_the_smallest_class_is_named_with_its_images(train: int, validation: int) -> None:
    (only,) = warnings_of(count=train, validation=validation)
    assert only.startswith(
        f"class 'dog' has few images ({train // 2} in train, {validation // 2} in validation, 100 in test)"
    )
    assert "up to 0.19 wide" in only
    assert warnings_of(count=40, validation=20) == []


def test_groups_of_one_image_each_are_a_warning() -> None:
    (only,) = warnings_of(groups=PLENTY)
    assert "'patient 0'" in only


@pytest.mark.parametrize(
    "alike",
    [
        ("cat", "Cat"),
        ("guinea pig", "guineapig"),
        ("cat", "cat "),
        ("cat", "cat\u3000"),
        ("cat", "c\u200bat"),
        ("1", "01"),
        ("1", "1.0"),
    ],
)
def test_classes_that_may_be_one_are_a_warning_with_their_images(alike: tuple[str, str]) -> None:
    *_, only = warnings_of(classes=("dog", *alike))
    assert (
        only == f"classes {alike[0]!r} (300 images), {alike[1]!r} (0 images) may be one, in several spellings"
    )
