"""The order of samples: what every rank relies on without asking the others.

Augmentation: random, but a function of seed, epoch and sample alone.
Batches on their way to a GPU, on a machine without one.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from samples import some_images

from ddpipe.train.batches import (
    GRAY,
    Batch,
    _Copies,
    augmented,
    batch_sizes,
    draws,
    global_batch,
    permutation,
    resized,
    seed_of_step,
    share_of,
    steps_per_epoch,
)
from ddpipe.train.recipe import AUGMENTATIONS, Augmentation


def test_order_of_an_epoch_holds_every_sample_once() -> None:
    order = permutation(3, 1, 100)
    assert sorted(order) == list(range(100))
    assert order.tolist() == permutation(3, 1, 100).tolist()


def test_the_order_of_a_published_seed_never_changes() -> None:
    """A checkpoint written by one version of ddpipe is resumed by the next."""
    assert permutation(0, 0, 8).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]


def test_seeds_and_epochs_each_give_another_order() -> None:
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 3), (9, 3), (2, 5), (1, 1), (1405, 64)])
def test_the_batches_of_an_epoch_hold_every_sample_once(samples: int, batch_size: int) -> None:
    order = permutation(0, 0, samples)
    batches = [
        global_batch(order, number, batch_size) for number in range(steps_per_epoch(samples, batch_size))
    ]
    assert np.concatenate(batches).tolist() == order.tolist()
    assert [len(batch) for batch in batches] == batch_sizes(samples, batch_size).tolist()
    sizes = list(map(len, batches))
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= batch_size


def test_one_image_is_no_batch_of_its_own() -> None:
    """1405 images in batches of 78 would leave one for the last step."""
    assert set(batch_sizes(1405, 78).tolist()) == {73, 74}


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 20])
def test_ranks_share_a_batch_evenly_and_without_overlap(ranks: int) -> None:
    batch = permutation(0, 0, 13)
    shares = [share_of(batch, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate(shares)) == sorted(batch)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_step_of_every_rank_draws_its_own_random_numbers() -> None:
    keys = {seed_of_step(seed, step, rank) for seed in range(4) for step in range(40) for rank in range(4)}
    assert len(keys) == 640
    assert all(0 <= key < 2**64 for key in keys)


def test_the_seed_of_a_step_never_changes() -> None:
    """As the order of an epoch: a resumed training draws the numbers that it would have drawn."""
    assert [seed_of_step(0, 0, 0), seed_of_step(7, 19, 3)] == [
        7765807450571155106,
        7680713427852157927,
    ]


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


@pytest.mark.parametrize("how", [Augmentation(cutout=1 / 4), ALL], ids=["alone", "with others"])
def test_a_hole_is_gray_and_as_large_as_asked_for(how: Augmentation) -> None:
    black = np.zeros_like(IMAGES)
    holes = augmented(black, how, 0, 0, SAMPLES) == GRAY
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
    assert 1.2 < (rows / columns).max() < 1.4, "the widest is 4 to 3"
    assert 1.2 < (columns / rows).max() < 1.4


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


def test_draws_are_those_of_every_version() -> None:
    """A resumed training sees the images that it would have seen."""
    np.testing.assert_array_equal(
        draws(3, 2, np.array([0, 1, 70_000]), 2),
        [
            [0.3490973132167998, 0.5990735017462487, 0.658645767054663],
            [0.5109868522723459, 0.8075801974510559, 0.5159925296497374],
        ],
    )


def test_a_shift_reaches_every_position_up_to_the_last() -> None:
    columns = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None], (4096, 32, 32, 1)).copy()
    rows = columns.swapaxes(1, 2).copy()
    for images, axis in ((columns, 1), (rows, 2)):
        moved = augmented(images.copy(), Augmentation(shift=1 / 8), 7, 0, np.arange(4096))
        middle = moved.take(16, axis=axis)[:, 16, 0].astype(int)
        assert set((middle - 16).tolist()) == set(range(-4, 5))


def ramps(count: int, height: int, width: int) -> np.ndarray:
    """Images whose pixels say where they are: four times their row, and four times their column."""
    rows, columns = np.mgrid[:height, :width].astype(np.uint8) * 4
    return np.stack([np.stack([rows, columns, rows], axis=-1)] * count)


def test_every_image_is_where_its_draws_put_it() -> None:
    """So that a training that another version began sees the same images; sides are 24 and 40 pixels."""
    samples, height, width = np.arange(100, 164), 24, 40
    down, right, mirror, hole_top, hole_left, *_ = draws(7, 3, samples, 9)
    shifted = augmented(ramps(64, height, width), Augmentation(shift=1 / 8), 7, 3, samples)
    np.testing.assert_array_equal(shifted[:, 12, 20, 0], 4 * (12 - 3 + np.floor(down * 7)))
    np.testing.assert_array_equal(shifted[:, 12, 20, 1], 4 * (20 - 5 + np.floor(right * 11)))

    plain = ramps(64, height, width)
    for flip, epoch, mirrored in (
        ("random", 3, mirror < 0.5),
        ("alternating", 4, draws(7, 0, samples, 1)[0] < 0.5),
        ("alternating", 5, draws(7, 0, samples, 1)[0] >= 0.5),
    ):
        drawn = draws(7, epoch, samples, 9)[2] < 0.5 if flip == "random" else mirrored
        changed = augmented(plain.copy(), Augmentation(flip=flip), 7, epoch, samples)
        expected = np.where(drawn[:, None, None, None], plain[:, :, ::-1], plain)
        np.testing.assert_array_equal(changed, expected)

    holes = augmented(np.zeros_like(plain), Augmentation(cutout=1 / 4), 7, 3, samples)[..., 0] == GRAY
    np.testing.assert_array_equal(holes.any(axis=2).argmax(axis=1), np.floor(hole_top * (24 - 6 + 1)))
    np.testing.assert_array_equal(holes.any(axis=1).argmax(axis=1), np.floor(hole_left * (40 - 6 + 1)))
    assert (holes.sum(axis=(1, 2)) == 6 * 6).all()


def test_every_zoom_is_the_rectangle_that_its_draws_say() -> None:
    """Its corners tell: an enlarged image has the pixels of its edge at its edge."""
    samples, height, width = np.arange(100, 164), 24, 40
    down, right, *_, area, ratio = draws(7, 3, samples, 9)[:7]
    parts, ratios = 0.35 + 0.65 * area, (4 / 3) ** (2 * ratio - 1)
    heights = np.minimum(np.rint(height * np.sqrt(parts / ratios)), height)
    widths = np.minimum(np.rint(width * np.sqrt(parts * ratios)), width)
    tops, lefts = np.floor(down * (height - heights + 1)), np.floor(right * (width - widths + 1))
    zoomed = augmented(ramps(64, height, width), Augmentation(zoom=0.35), 7, 3, samples).astype(int)
    np.testing.assert_allclose(zoomed[:, 0, 0, 0], 4 * tops, atol=1)
    np.testing.assert_allclose(zoomed[:, 0, 0, 1], 4 * lefts, atol=1)
    np.testing.assert_allclose(zoomed[:, -1, -1, 0], 4 * (tops + heights - 1), atol=1)
    np.testing.assert_allclose(zoomed[:, -1, -1, 1], 4 * (lefts + widths - 1), atol=1)


def test_every_image_is_as_bright_and_has_as_much_contrast_as_its_draws_say() -> None:
    images = 40 + IMAGES // 2
    brightness, contrast = 0.8 + 0.4 * draws(7, 3, SAMPLES, 9)[7:]
    lit = augmented(images.copy(), Augmentation(light=0.2), 7, 3, SAMPLES)
    means, deviations = images.mean(axis=(1, 2, 3)), images.std(axis=(1, 2, 3))
    np.testing.assert_allclose(lit.mean(axis=(1, 2, 3)), brightness * means, atol=1.5)  # cut off twice
    np.testing.assert_allclose(lit.std(axis=(1, 2, 3)), brightness * contrast * deviations, rtol=0.02)


def test_smaller_images_are_those_images_smoothed() -> None:
    """Every other pixel alone would make a fine pattern a coarse one, or none."""
    stripes = torch.zeros(2, 32, 24, 3, dtype=torch.uint8)
    stripes[1, :, ::2] = 200
    stripes[1, :, :, 1] = 60
    smaller = resized(stripes, 0.5)
    assert smaller.shape == (2, 16, 12, 3)
    assert not smaller[0].any()
    assert smaller[1, :, 2:-2, 0].float().sub(100).abs().max() < 25
    assert (smaller[1, :, :, 1] == 60).all()
    assert resized(stripes, 0.01).shape == (2, 4, 4, 3), "a pooling must leave something"


def test_a_batch_is_used_once_its_copy_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is not for others before the stream that computes is done with it."""
    calls = list[tuple[str, object]]()
    gpu, copied = torch.device("cuda", 0), torch.Event("cpu")
    stream = SimpleNamespace(wait_event=lambda event: calls.append(("waits", event)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", {gpu: stream}.__getitem__)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, used_by: calls.append((str(tensor.dtype), used_by))
    )
    batch = Batch(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), 2)
    assert _Copies(gpu).finished((batch, copied)) is batch
    assert calls == [("waits", copied), ("torch.uint8", stream), ("torch.int64", stream)]
    assert _Copies(torch.device("cpu")).finished((batch, None)) is batch
    assert len(calls) == 3


def test_a_copy_to_a_gpu_is_pinned_and_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only pinned memory is copied while the GPU computes, and only without waiting for the copy."""
    calls: list[tuple[str, object]] = []
    gpu = torch.device("cuda", 0)
    streams = {gpu: SimpleNamespace(record_event=lambda: "copied")}

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(("pinned", tensor.dtype))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        calls.append((f"{device} {non_blocking}", tensor.dtype))
        return tensor

    monkeypatch.setattr(torch.cuda, "Stream", streams.__getitem__)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    copies = _Copies(gpu)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batch, event = copies.begun(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int64), 2)
    assert calls == [
        ("pinned", torch.uint8),
        ("pinned", torch.int64),
        ("cuda:0 True", torch.uint8),
        ("cuda:0 True", torch.int64),
    ]
    assert (batch.size, event) == (2, "copied")
