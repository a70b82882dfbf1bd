"""Which samples a split holds: their ids and labels, as two columns named by their content.

    <store>/columns/<sha256>.npy

The manifest has their hashes, so it proves them as it proves the shards. Readers map them into memory.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.data import npy
from ddpipe.data.cache import default_cache
from ddpipe.data.columns import Strings, Text, trimmed
from ddpipe.data.fetching import fetched
from ddpipe.data.manifest import ColumnRef, DatasetManifest, ShardRef, Split
from ddpipe.data.npy import mapped
from ddpipe.data.shards import object_key
from ddpipe.errors import DatasetError
from ddpipe.storage import Store

Labels = NDArray[np.int64]
"""Multiclass: (samples,), the index of the class. Multilabel: (samples, classes), 0 or 1."""


@dataclass(frozen=True, slots=True)
class SampleIndex:
    """The samples of a split, in the order of its images.

    Attributes:
        sample_ids: Names that stay with a sample from version to version, such as its path in the source.
        labels: What they show.
        groups: int64, (samples,): equal numbers belong together; None: each sample is on its own.
    """

    sample_ids: Strings
    labels: Labels
    groups: Labels | None = None


def described(
    shards: Sequence[ShardRef], sample_ids: Text, labels: Labels, classes: int, groups: Text | None = None
) -> tuple[Split, Mapping[str, bytes]]:
    """Describe a split for a manifest.

    Args:
        shards: Of the split, in the order of the samples.
        sample_ids: Of each sample, (samples,).
        labels: int64, (samples,) or (samples, classes).
        classes: Number of classes.
        groups: What each sample belongs to, (samples,); only which ones are equal is stored.
    """
    ids, ids_data = _encoded(trimmed(sample_ids))
    shown, shown_data = _encoded(labels.astype(np.int64, copy=False))
    objects = {object_key(ids): ids_data, object_key(shown): shown_data}
    together = None
    if groups is not None:
        together, data = _encoded(np.unique(groups, return_inverse=True)[1].astype(np.int64, copy=False))
        objects[object_key(together)] = data
    return Split(tuple(shards), ids, shown, tuple(counted(labels, classes).tolist()), together), objects


def counted(labels: Labels, classes: int) -> NDArray[np.int64]:
    """How many samples show each class, shape (classes,)."""
    counts: NDArray[np.int64] = (
        np.bincount(labels, minlength=classes) if labels.ndim == 1 else np.count_nonzero(labels, axis=0)
    )
    return counts


def open_index(manifest: DatasetManifest, split: str, store: Store, cache: Path | None = None) -> SampleIndex:
    """The ids and labels of a split, verified and mapped into memory."""
    part = manifest.splits[split]
    ids, labels, *groups = (
        _opened(fetched(store, column, cache or default_cache())) for column in part.columns
    )
    many = len(manifest.classes)
    shape = (part.count, many) if manifest.task == "multilabel" else (part.count,)
    fits = ids.dtype.kind == "S" and ids.shape == (part.count,)
    fits = fits and labels.dtype == np.int64 and labels.shape == shape
    fits = fits and (not labels.size or 0 <= labels.min() <= labels.max() < (many if labels.ndim == 1 else 2))
    fits = fits and all(one.dtype == np.int64 and one.shape == (part.count,) for one in groups)
    fits = fits and all(one.min(initial=0) >= 0 for one in groups)
    if not fits or counted(labels, many).tolist() != list(part.per_class):
        raise DatasetError(
            what="a dataset cannot be read",
            which=f"{manifest.name}, {split}",
            seen=f"its ids are {ids.dtype} {ids.shape}, its labels {labels.dtype} {labels.shape}: not "
            f"the {part.count} samples of {many} classes that the manifest counts",
            do="Prepare the dataset again: `ddpipe prepare`.",
        )
    return SampleIndex(Strings(ids), labels, *groups)


def _encoded(column: NDArray[Any]) -> tuple[ColumnRef, bytes]:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(column), allow_pickle=False)
    data = buffer.getvalue()
    return ColumnRef(hashlib.sha256(data).hexdigest(), len(data)), data


def _opened(path: Path) -> NDArray[Any]:
    data = mapped(path)
    try:
        return npy.array_in(data)
    except ValueError as error:
        raise DatasetError(
            what="a column of a dataset is damaged",
            which=str(path),
            seen=str(error),
            do="Prepare the dataset again: `ddpipe prepare`.",
        ) from error
