"""Which sample goes to which rank at which step: pure functions of (seed, epoch, step).

Batch k of an epoch is `perm(seed, epoch)[k * B : (k + 1) * B]`, B the size of the global batch: the same
samples in the same step for any number of ranks. The last batch of an epoch holds what is left, so that every
sample is seen exactly once in every epoch; a rank's share of it may be empty.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Batches that hold every sample once."""
    return -(-samples // batch_size)


def batch_sizes(samples: int, batch_size: int) -> Indices:
    """Samples in each batch of an epoch."""
    return np.diff(np.append(np.arange(0, samples, batch_size), samples))


def images_seen(step: int, samples: int, batch_size: int) -> int:
    """Images in the first `step` batches of a training."""
    epochs, batches = divmod(step, steps_per_epoch(samples, batch_size))
    return epochs * samples + min(batches * batch_size, samples)


def permutation(seed: int, epoch: int, samples: int) -> Indices:
    """All indices below `samples`, in the order of this epoch.

    Returns:
        int64, shape (samples,).
    """
    return np.random.default_rng([seed, epoch]).permutation(samples)


def global_batch(order: Indices, batch: int, batch_size: int) -> Indices:
    """The samples of one batch of an epoch, over all ranks.

    Returns:
        int64, shape (batch_size,); shorter for the last batch of an epoch.
    """
    return order[batch * batch_size : (batch + 1) * batch_size]


def share_of(batch: Indices, rank: int, ranks: int) -> Indices:
    """A rank's share of a global batch: every `ranks`-th sample, so shares differ by one sample at most."""
    return batch[rank::ranks]


def seed_of_step(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's random numbers in one step, such as those of dropout: below 2**64."""
    key = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8)
    return int.from_bytes(key.digest())
