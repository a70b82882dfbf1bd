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
    _Copies,
    augmented,
    batch_sizes,
    draws,
    global_batch,
    permutation,
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
