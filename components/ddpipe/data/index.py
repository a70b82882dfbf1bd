"""Which samples a split holds, and which a model was trained on.

    <store>/columns/<sha256>.npy  ids and labels of a split, two columns named by their content; the manifest
                                  has their hashes, and so proves them as it proves the shards
    <training>/trained_on.npy     uint64, sorted: hashes of the ids of the training split, and of those of
    <package>/trained_on.npy      every model that the training started from

A dataset version may test on what an earlier version trained on. A model that starts from the earlier one's
weights has then seen its test images, even if its own training split does not contain them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.data import npy
from ddpipe.data.cache import default_cache
from ddpipe.data.columns import Strings, Text, hashes, trimmed
from ddpipe.data.fetching import fetched
from ddpipe.data.manifest import ColumnRef, DatasetManifest, ShardRef, Split, error_for_dataset
from ddpipe.data.shards import array_at, object_key
from ddpipe.errors import CorruptObject, NoSuchObject
from ddpipe.storage import Store, open_store

Labels = NDArray[np.int64]  # multiclass: (samples,), indices; multilabel: (samples, classes), 0 or 1


@dataclass(frozen=True, slots=True)
class SampleIndex:
    """The samples of a split, in the order of its images; those of equal groups belong together."""

    sample_ids: Strings
    labels: Labels
    groups: Labels | None = None


def described(
    shards: Sequence[ShardRef], sample_ids: Text, labels: Labels, classes: int, groups: Text | None = None
) -> tuple[Split, Mapping[str, bytes]]:
    """A split for a manifest, and the files of its columns; ids and groups have shape (samples,)."""
    ids, ids_data = _encoded(trimmed(sample_ids))
    shown, shown_data = _encoded(labels.astype(np.int64))
    objects = {object_key(ids): ids_data, object_key(shown): shown_data}
    together = None
    if groups is not None:
        together, data = _encoded(np.unique(groups, return_inverse=True)[1].astype(np.int64))
        objects[object_key(together)] = data
    return Split(tuple(shards), ids, shown, tuple(class_counts(labels, classes).tolist()), together), objects


def class_counts(labels: Labels, classes: int) -> NDArray[np.int64]:
    """How many samples show each class, shape (classes,)."""
    counts: NDArray[np.int64] = (
        np.bincount(labels, minlength=classes) if labels.ndim == 1 else np.count_nonzero(labels, axis=0)
    )
    return counts


def open_index(manifest: DatasetManifest, split: str, store: Store, cache: Path | None = None) -> SampleIndex:
    """The ids and labels of a split, verified and mapped into memory."""
    part = manifest.splits[split]
    ids, labels, *groups = (
        array_at(fetched(store, column, cache or default_cache())) for column in part.columns
    )
    many = len(manifest.classes)
    shape = (part.count, many) if manifest.task == "multilabel" else (part.count,)
    fits = ids.dtype.kind == "S" and ids.shape == (part.count,)
    fits = fits and labels.dtype == np.int64 and labels.shape == shape
    fits = fits and (not labels.size or 0 <= labels.min() <= labels.max() < (many if labels.ndim == 1 else 2))
    fits = fits and all(
        one.dtype == np.int64 and one.shape == (part.count,) and (one >= 0).all() for one in groups
    )
    if not fits or class_counts(labels, many).tolist() != list(part.per_class):
        raise error_for_dataset(
            f"{manifest.name}, {split}",
            f"its ids are {ids.dtype} {ids.shape}, its labels {labels.dtype} {labels.shape}: not "
            f"the {part.count} samples of {many} classes that the manifest counts",
        )
    return SampleIndex(Strings(ids), labels, *groups)


def _encoded(column: NDArray[Any]) -> tuple[ColumnRef, bytes]:
    data = npy.to_bytes(column)
    return ColumnRef(hashlib.sha256(data).hexdigest(), len(data)), data


TRAINED_ON = "trained_on.npy"

HELD_OUT = ("validation", "test")  # the splits that judge a model
Hashes = NDArray[np.uint64]  # sorted, each once; among 10 million ids, two share one in 1 of 400,000 cases


def hashed(ids: Text) -> Hashes:
    """The hashes of a column of ids."""
    return np.unique(hashes(ids))


def are_in(ids: Text, seen: Hashes) -> NDArray[np.bool_]:
    """Which of the ids a model was trained on, shape (ids,), in their order."""
    return np.isin(hashes(ids), seen)


def trained_on(manifest: DatasetManifest, store: Store, before: Hashes | None = None) -> Hashes:
    """What a training on this version sees."""
    own = hashed(open_index(manifest, "train", store).sample_ids.column)
    return own if before is None else np.union1d(own, before)


def held_out_seen(manifest: DatasetManifest, store: Store, seen: Hashes) -> Mapping[str, int]:
    """How many samples of each split that judges a model it was trained on; splits with none are left out."""
    # Splits that come as they are may use the same names, such as 0.png in each.
    foreign = np.setdiff1d(seen, trained_on(manifest, store))
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


def samples_seen(uri: str) -> Hashes | None:
    """What the model of a training or a package was trained on; None if that was not recorded."""
    store = open_store(uri)
    try:
        return from_bytes(store.read(TRAINED_ON), f"{store.uri}/{TRAINED_ON}")
    except NoSuchObject:
        return None


def from_bytes(data: bytes, origin: str) -> Hashes:
    """The hashes in a file `trained_on.npy`."""
    try:
        seen = npy.array_in(data)
        if seen.dtype != np.uint64 or seen.ndim != 1 or (seen[1:] <= seen[:-1]).any():
            raise ValueError("it is not a sorted column of hashes, each once")  # noqa: TRY301
    except ValueError as error:
        raise CorruptObject(
            what="the list of samples that a model was trained on is malformed",
            which=origin,
            seen=str(error),
            do="Train and export the model again, or start from another.",
        ) from error
    return seen
