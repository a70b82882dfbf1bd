"""Augmentation: random, but a function of seed, epoch and sample alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from samples import some_images

from ddpipe.train.batches import GRAY, augmented, draws
from ddpipe.train.recipe import AUGMENTATIONS, Augmentation

IMAGES = some_images(64, (32, 32, 3))
SAMPLES = np.arange(64)
ALL = AUGMENTATIONS["shift-flip-cutout"]


def _augmented(chosen: slice | list[int], how: Augmentation = ALL, epoch: int = 0) -> np.ndarray:
    return augmented(IMAGES[chosen].copy(), how, 7, epoch, SAMPLES[chosen])


def test_augmentation_depends_on_sample_and_epoch_not_on_batch() -> None:
    whole = _augmented(slice(None))
    np.testing.assert_array_equal(_augmented([40, 3, 17]), whole[[40, 3, 17]])
    assert (_augmented(slice(None), epoch=1) != whole).any(axis=(1, 2, 3)).all()


def test_nothing_to_do_leaves_images_as_they_are() -> None:
    np.testing.assert_array_equal(_augmented(slice(None), AUGMENTATIONS["none"]), IMAGES)


def test_about_every_second_image_is_mirrored_and_no_other_changed() -> None:
    flipped = _augmented(slice(None), Augmentation(flip="random"))
    mirrored = (flipped == IMAGES[:, :, ::-1]).all(axis=(1, 2, 3))
    same = (flipped == IMAGES).all(axis=(1, 2, 3))
    assert (mirrored ^ same).all()
    assert 20 < mirrored.sum() < 44


def test_an_image_that_was_mirrored_in_an_epoch_is_not_in_the_next() -> None:
    how = Augmentation(flip="alternating")
    mirrored = [
        (_augmented(slice(None), how, epoch) == IMAGES[:, :, ::-1]).all(axis=(1, 2, 3)) for epoch in range(4)
    ]
    assert 20 < mirrored[0].sum() < 44
    for earlier, later in pairwise(mirrored):
        assert (earlier ^ later).all()


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


def test_a_hole_is_gray_and_as_large_as_asked_for() -> None:
    black = np.zeros_like(IMAGES)
    holes = augmented(black, Augmentation(cutout=1 / 4), 0, 0, SAMPLES) == GRAY
    assert (holes.sum(axis=(1, 2, 3)) == 8 * 8 * 3).all()


def test_a_photograph_is_seen_in_part_alike_in_any_batch() -> None:
    photo = AUGMENTATIONS["photo"]
    whole = _augmented(slice(None), photo)
    np.testing.assert_array_equal(_augmented([40, 3, 17], photo), whole[[40, 3, 17]])
    assert (whole != IMAGES).any(axis=(1, 2, 3)).all()


def test_a_zoom_keeps_at_least_its_part_of_the_area_and_the_shape() -> None:
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None], (64, 64))
    images = np.repeat(np.stack([ramp, ramp.T, ramp], axis=-1)[None], 64, axis=0)
    zoomed = augmented(images.copy(), Augmentation(zoom=0.35), 0, 0, SAMPLES)
    assert zoomed.shape == images.shape
    rows = np.ptp(zoomed[..., 0].astype(int), axis=(1, 2)) + 2
    columns = np.ptp(zoomed[..., 1].astype(int), axis=(1, 2)) + 2
    parts = rows * columns / 64**2
    assert parts.min() > 0.3
    assert 0.5 < parts.mean() < 0.85
    assert (rows / columns).max() > 1.1
    assert (rows / columns).min() < 0.9


def test_light_changes_brightness_and_not_the_places() -> None:
    lit = augmented(IMAGES.copy(), Augmentation(light=0.2), 0, 0, SAMPLES)
    factors = lit.mean(axis=(1, 2, 3)) / IMAGES.mean(axis=(1, 2, 3))
    assert 0.75 < factors.min() < 0.9
    assert 1.05 < factors.max() < 1.25
    correlations = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(lit, IMAGES, strict=True)]
    assert min(correlations) > 0.9


@pytest.mark.parametrize("count", [1, 5])
def test_draws_are_uniform_and_independent(count: int) -> None:
    numbers = draws(3, 2, np.arange(20_000), count)
    assert numbers.shape == (count, 20_000)
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / numbers.size - 0.1).max() < 0.01
    correlations = np.corrcoef(np.concatenate([numbers, numbers[:, ::-1]]))
    assert np.abs(correlations - np.eye(2 * count)).max() < 0.03


def test_a_shift_reaches_every_position_up_to_the_last() -> None:
    columns = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None], (4096, 32, 32, 1)).copy()
    rows = columns.swapaxes(1, 2).copy()
    for images, axis in ((columns, 1), (rows, 2)):
        moved = augmented(images.copy(), Augmentation(shift=1 / 8), 7, 0, np.arange(4096))
        middle = moved.take(16, axis=axis)[:, 16, 0].astype(int)
        assert set((middle - 16).tolist()) == set(range(-4, 5))
