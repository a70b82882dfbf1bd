"""Augmentation: random, but a function of seed, epoch and sample alone."""

from __future__ import annotations

import numpy as np
import pytest
from samples import some_images

from ddpipe.train.augment import AUGMENTATIONS, GREY, Augmentation, augmented, draws

IMAGES = some_images(64, (32, 32, 3))
SAMPLES = np.arange(64)
ALL = AUGMENTATIONS["shift-flip-cutout"]


def _augmented(chosen: slice | list[int], how: Augmentation = ALL, epoch: int = 0) -> np.ndarray:
    return augmented(IMAGES[chosen].copy(), how, 7, epoch, SAMPLES[chosen])


def test_a_sample_is_changed_alike_in_any_batch_and_otherwise_in_another_epoch() -> None:
    whole = _augmented(slice(None))
    np.testing.assert_array_equal(_augmented([40, 3, 17]), whole[[40, 3, 17]])
    assert (_augmented(slice(None), epoch=1) != whole).any(axis=(1, 2, 3)).all()


def test_nothing_to_do_leaves_images_as_they_are() -> None:
    np.testing.assert_array_equal(_augmented(slice(None), AUGMENTATIONS["none"]), IMAGES)


def test_about_every_second_image_is_mirrored_and_no_other_changed() -> None:
    flipped = _augmented(slice(None), Augmentation(flip=True))
    mirrored = (flipped == IMAGES[:, :, ::-1]).all(axis=(1, 2, 3))
    same = (flipped == IMAGES).all(axis=(1, 2, 3))
    assert (mirrored ^ same).all()
    assert 20 < mirrored.sum() < 44


def test_a_shifted_image_is_the_image_elsewhere() -> None:
    places = set()
    for image, moved in zip(IMAGES, _augmented(slice(None), Augmentation(shift=1 / 8)), strict=True):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        found = [
            (y, x) for y in range(9) for x in range(9) if (padded[y : y + 32, x : x + 32] == moved).all()
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 30


def test_a_hole_is_grey_and_as_large_as_asked_for() -> None:
    black = np.zeros_like(IMAGES)
    holes = augmented(black, Augmentation(cutout=1 / 4), 0, 0, SAMPLES) == GREY
    assert (holes.sum(axis=(1, 2, 3)) == 8 * 8 * 3).all()


@pytest.mark.parametrize("count", [1, 5])
def test_draws_are_uniform_and_independent(count: int) -> None:
    numbers = draws(3, 2, np.arange(20_000), count)
    assert numbers.shape == (count, 20_000)
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / numbers.size - 0.1).max() < 0.01
    correlations = np.corrcoef(np.concatenate([numbers, numbers[:, ::-1]]))
    assert np.abs(correlations - np.eye(2 * count)).max() < 0.03
