"""The splits of earlier versions: where samples were, and which test samples may have been trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ddpipe.data.columns import Strings
from ddpipe.data.index import open_index
from ddpipe.data.manifest import SPLITS, DatasetManifest, load_manifest
from ddpipe.data.versions import versions
from ddpipe.errors import DatasetError, StoreError
from ddpipe.prepare.splitting import UNKNOWN, Places
from ddpipe.sources.sample_columns import Finder, Samples
from ddpipe.storage import Store

log = logging.getLogger(__name__)

MOST = 20
"""Versions that are looked at, from the newest on."""

TEST = SPLITS.index("test")


def kept_places(
    store: Store, name: str, rule: Mapping[str, Any], seed: int, samples: Samples
) -> Places | None:
    """Where the samples were in the newest version that was split in the same way."""
    for manifest in _newest(store, name):
        if manifest.seed == seed and _facts(manifest.split_rule) == _facts(rule):
            return _places(manifest, store, samples)
    return None


def warn_of_moved(store: Store, name: str, samples: Samples, places: Places) -> None:
    """Log how many test samples were used for training or validation in the newest version."""
    for manifest in _newest(store, name):
        before = _places(manifest, store, samples)
        moved = np.flatnonzero((places == TEST) & (before != TEST) & (before != UNKNOWN))
        if len(moved):
            log.warning(
                "%d of %d test images were not in the test split of version %s, such as %s: models that were "
                "trained on that version may know them",
                len(moved),
                np.count_nonzero(places == TEST),
                manifest.dataset_id[:12],
                Strings(samples.ids)[int(moved[0])],
            )
        return


def _newest(store: Store, name: str) -> Iterator[DatasetManifest]:
    """The newest versions that can be read, the newest first."""
    for version in versions(store, name)[: -MOST - 1 : -1]:
        try:
            yield load_manifest(version.uri)
        except (DatasetError, StoreError) as error:
            log.warning("version %s is ignored: %s", version.dataset_id[:12], error)


def _facts(rule: Mapping[str, Any]) -> tuple[object, ...]:
    """All of a split rule that decides what test is."""
    return (
        rule.get("stratify"),
        rule.get("fractions"),
        rule.get("group_pattern"),
        bool(rule.get("folds")),
    )


def _places(manifest: DatasetManifest, store: Store, samples: Samples) -> Places:
    """The split of each sample in a version."""
    find = Finder(samples.ids)
    places = np.full(len(samples), UNKNOWN, np.int8)
    for number, split in enumerate(SPLITS):
        try:
            rows = find.rows(open_index(manifest, split, store).sample_ids.column)
        except (DatasetError, StoreError) as error:
            log.warning("the %s split of version %s is ignored: %s", split, manifest.dataset_id[:12], error)
            continue
        places[rows[rows >= 0]] = number
    return places
