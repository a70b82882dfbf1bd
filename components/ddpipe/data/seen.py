"""Which samples a model was trained on, by hashes of their ids: so that it is not tested on them.

    <training>/trained_on.npy     uint64, sorted: the samples of the training split, and those of every model
    <package>/trained_on.npy      that the training started from

A dataset version may test on what an earlier version trained on. A model that starts from the earlier one's
weights has then seen its test images, even if its own training split does not contain them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ddpipe.data import npy
from ddpipe.data.columns import Text, hashes
from ddpipe.data.index import open_index
from ddpipe.data.manifest import DatasetManifest
from ddpipe.errors import CorruptObject
from ddpipe.storage import Store

TRAINED_ON = "trained_on.npy"

HELD_OUT = ("validation", "test")
"""The splits that judge a model."""

Hashes = NDArray[np.uint64]
"""Sorted, each once; of 8 bytes: among 10 million ids, two share one with a probability of 1 in 400,000."""


def hashed(ids: Text) -> Hashes:
    """The hashes of a column of ids."""
    return np.unique(hashes(ids))


def are_in(ids: Text, seen: Hashes) -> NDArray[np.bool_]:
    """Which of the ids a model was trained on, shape (ids,), in their order.

    Args:
        ids: A column of ids, shape (ids,).
        seen: What the model was trained on.
    """
    return np.isin(hashes(ids), seen)


def trained_on(manifest: DatasetManifest, store: Store, before: Hashes | None = None) -> Hashes:
    """What a training on this version sees."""
    own = hashed(open_index(manifest, "train", store).sample_ids.column)
    return own if before is None else np.union1d(own, before)


def held_out_seen(manifest: DatasetManifest, store: Store, seen: Hashes) -> Mapping[str, int]:
    """How many samples of each split that judges a model it was trained on; splits with none are left out.

    Ids are unique within a version, so an id of its own training split is none of these.
    """
    foreign = np.setdiff1d(seen, trained_on(manifest, store), assume_unique=True)
    counts = {
        split: int(np.isin(hashed(open_index(manifest, split, store).sample_ids.column), foreign).sum())
        for split in HELD_OUT
    }
    return {split: count for split, count in counts.items() if count}


def counted(seen: Mapping[str, int], manifest: DatasetManifest) -> str:
    """The counts of `held_out_seen` as text: "19 of 100 test images"."""
    return " and ".join(
        f"{count:,} of {manifest.splits[split].count:,} {split} images" for split, count in seen.items()
    )


def to_bytes(seen: Hashes) -> bytes:
    """As an .npy file."""
    file = io.BytesIO()
    np.save(file, seen, allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes, origin: str) -> Hashes:
    """The inverse of `to_bytes`."""
    try:
        seen = npy.array_in(data)
    except ValueError as error:
        raise _corrupt(origin, str(error)) from error
    if seen.dtype != np.uint64 or seen.ndim != 1 or (seen[1:] <= seen[:-1]).any():
        raise _corrupt(origin, "it is not a sorted column of hashes, each once")
    return seen


def _corrupt(origin: str, seen: str) -> CorruptObject:
    return CorruptObject(
        what="the list of samples that a model was trained on is malformed",
        which=origin,
        seen=seen,
        do="Train and export the model again, or start from another.",
    )
