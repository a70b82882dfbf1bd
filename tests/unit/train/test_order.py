"""The order of samples: what every rank relies on without asking the others."""

from __future__ import annotations

import numpy as np
import pytest

from ddpipe.train.batches import (
    batch_sizes,
    global_batch,
    permutation,
    seed_of_step,
    share_of,
    steps_per_epoch,
)


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
    assert all(len(batch) == batch_size for batch in batches[:-1])


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
