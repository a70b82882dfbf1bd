"""Builds the manifest of a dataset version: counts, statistics, and a fingerprint of the source."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddpipe.data.columns import PIECE, Rows, trimmed
from ddpipe.data.index import described
from ddpipe.data.manifest import SPLITS, DatasetManifest
from ddpipe.prepare.encoding import Encoding
from ddpipe.prepare.entries import Members
from ddpipe.prepare.planning import Stored
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.prepare.splitting import given_splits
from ddpipe.sources import Survey
from ddpipe.sources.samples import Samples


def rule_facts(spec: PrepareSpec) -> dict[str, Any]:
    """How samples are split, except for the seed."""
    return {
        "kind": "stratified",
        "fractions": spec.fractions,
        **({"group_pattern": spec.group_pattern} if spec.group_pattern else {}),
    }


def manifest_of(
    spec: PrepareSpec,
    survey: Survey,
    encoding: Encoding,
    shards: Mapping[str, Sequence[Stored]],
    skipped: Sequence[str],
) -> tuple[DatasetManifest, dict[str, bytes]]:
    """The manifest of a version whose shards are stored."""
    samples = survey.samples
    none = np.empty(0, np.int64)
    rows = {split: np.concatenate([none, *(one.rows for one in shards[split])]) for split in SPLITS}
    everything = [one.entry.members for split in SPLITS for one in shards[split]]
    shape = encoding.read_shape(max(int(members.shapes[:, 2].max()) for members in everything))
    mean, std = _statistics([one.entry.members for one in shards["train"]], shape[2])
    given = [split for split in given_splits(samples) if split]
    is_grouped = bool((samples.groups != b"").any())
    parts = {
        split: described(
            [one.entry.shard for one in shards[split]],
            samples.ids[rows[split]],
            samples.labels[rows[split]],
            len(survey.classes),
            samples.units[rows[split]] if is_grouped else None,
        )
        for split in SPLITS
    }
    manifest = DatasetManifest(
        name=spec.name,
        task=survey.task,
        classes=survey.classes,
        shape=shape,
        dtype="uint8",
        splits={split: part for split, (part, _) in parts.items()},
        mean=mean,
        std=std,
        split_rule={
            **rule_facts(spec),
            **({"groups": _counted(samples, rows)} if is_grouped else {}),
            **({"given": given} if given else {}),
        },
        seed=spec.split_seed,
        source={
            "kind": spec.source,
            "fingerprint": _fingerprint(everything),
            "encoding": encoding.facts,
            **({"image_size": spec.image_size} if spec.image_size else {}),
            **survey.facts,
        },
        skipped=tuple(skipped),
    )
    return manifest, {key: data for _, objects in parts.values() for key, data in objects.items()}


def _fingerprint(everything: Sequence[Members]) -> str:
    """SHA-256 of all files and their ids, independent of their order."""
    ids = trimmed(np.concatenate([members.ids for members in everything]))
    hashes = np.concatenate([members.sha256 for members in everything])
    order, digest = np.argsort(ids, kind="stable"), hashlib.sha256()
    for column in (ids, hashes):
        for start in range(0, len(order), PIECE):
            digest.update(column[order[start : start + PIECE]].data)
    return digest.hexdigest()


def _counted(samples: Samples, rows: Mapping[str, Rows]) -> dict[str, int]:
    """Number of groups in each split."""
    return {split: len(np.unique(samples.units[found])) for split, found in rows.items()}


def _statistics(parts: Sequence[Members], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels scaled to 0..1; exact, from sums of whole numbers."""
    sums = [[int(value) for value in members.moments.sum(axis=0)] for members in parts]
    count = sum(row[0] for row in sums)
    mean, std = [], []
    for channel in range(channels):
        # A gray image has the same values in every channel.
        places = [1 + 2 * channel if len(row) > 3 else 1 for row in sums]  # noqa: PLR2004
        total = sum(row[place] for row, place in zip(sums, places, strict=True))
        squares = sum(row[place + 1] for row, place in zip(sums, places, strict=True))
        mean.append(round(total / count / 255, 6))
        std.append(round(math.sqrt(squares * count - total**2) / count / 255, 6))
    return tuple(mean), tuple(std)
