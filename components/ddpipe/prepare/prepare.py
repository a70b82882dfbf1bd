"""The step: survey the source, encode what it holds, publish a dataset version.

    1. check the parameters, and that the store can be written to
    2. survey the source: ids, labels and stamps, without reading its images
    3. assign the samples to splits (splitting.py)
    4. plan: reuse what earlier prepares stored, if it is unchanged (planning.py, entries.py)
    5. read and encode the rest (packing.py), or have helpers do it (sharing.py); unreadable images are
       rejected, all in one message, or skipped
    6. publish: the manifest comes last

Each object is written atomically and named by its content. So a prepare that is killed leaves at most some
shards that the next one reuses, and two prepares at the same time do not disturb each other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ddpipe.data.catalogue import CLAIMS, CLEANINGS, damage, intended_shards, intent, objects_of, shards_of
from ddpipe.data.manifest import DatasetManifest, manifest_key
from ddpipe.data.shards import object_key
from ddpipe.data.versions import ORIGIN
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject
from ddpipe.prepare.building import VersionBuilder
from ddpipe.prepare.checks import note_missing_splits, refuse_results_inside, refuse_unreadable
from ddpipe.prepare.entries import Entry, lost, read_entries
from ddpipe.prepare.packing import Packer
from ddpipe.prepare.planning import located
from ddpipe.prepare.sharing import Helped, Helpers
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.prepare.splitting import grouped, warn_of_moved
from ddpipe.sources import open_source
from ddpipe.sources.base import error_for_source
from ddpipe.storage import Store, open_store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A dataset version in its store."""

    manifest_uri: str
    manifest: DatasetManifest
    dataset_id: str
    reused: bool  # it existed already: nothing was written
    encoded: int  # samples that were read, encoded and stored; the others come from earlier prepares
    skipped: list[str]  # ids of unreadable samples that were left out
    seconds: float


def prepare(spec: PrepareSpec, helpers: Helpers | None = None) -> Prepared:
    """Turn raw data into a dataset version, the same one with and without helpers."""
    started = time.monotonic()
    spec = spec.validated().with_detected_source()
    refuse_results_inside(spec, spec.store)
    source = open_source(spec.source, spec.source_path, spec.columns)
    store = open_store(spec.store)
    store.check_writable()
    survey = source.survey()
    refuse_unreadable(survey.problems, spec)
    if survey.doubt and not spec.group_pattern:
        raise error_for_source(spec.where, *survey.doubt)
    if spec.group_pattern:
        survey = grouped(survey, spec.group_pattern, spec.where)
    packer = Packer(source, survey, store, spec.name, remote="://" in spec.source_path)
    entries = read_entries(store, spec.name)
    stored = located(entries, survey.samples)
    helped = Helped(helpers, spec, survey, store)
    note_missing_splits(survey.samples)
    version = VersionBuilder(spec, survey, packer, stored, _broken(spec, store, entries), helped).build()
    manifest = version.manifest
    key = manifest_key(spec.name, manifest.dataset_id)
    objects = {**version.columns, key: manifest.to_json().encode()}
    damaged = [key for key, content in objects.items() if not _is_published(store, key, content)]
    reused = not version.encoded and not damaged
    if not reused:
        warn_of_moved(store, spec.name, version.samples, version.places)
        with intent(store, CLAIMS, {item.sha256 for item in objects_of(manifest)}):
            _refuse_if_lost(store, manifest)
            for place, content in objects.items():  # the manifest comes last
                store.write(place, content)
    beside = key.replace("manifest.json", ORIGIN)
    if spec.origin and not (reused and store.exists(beside)):
        store.write(beside, json.dumps({"schema": 1, **spec.origin}).encode())
    helped.clear()
    uri = f"{store.uri}/{key}"
    log.info("dataset %s %s: %s", spec.name, "is unchanged" if reused else "is published", uri)
    return Prepared(
        manifest_uri=uri,
        manifest=manifest,
        dataset_id=manifest.dataset_id,
        reused=reused,
        encoded=version.encoded,
        skipped=list(manifest.skipped),
        seconds=time.monotonic() - started,
    )


def _broken(spec: PrepareSpec, store: Store, entries: Sequence[Entry]) -> set[str]:
    """Hashes of the shards that cannot be reused: the lost and, with `verify`, the damaged ones."""
    if not spec.verify:
        return lost(entries, store)
    found = damage({entry.shard for entry in entries}, store)
    for problem in found.values():
        log.warning("damaged: %s", problem)
    return {shard.sha256 for shard in found}


def _is_published(store: Store, key: str, content: bytes) -> bool:
    """Whether an object is stored, undamaged."""
    try:
        if store.read(key) == content:
            return True
    except NoSuchObject:
        return False
    except CorruptObject:
        pass
    log.warning("damaged: %s differs from what was published and is written again", key)
    return False


def _refuse_if_lost(store: Store, manifest: DatasetManifest) -> None:
    """A reused shard may have been deleted in the meantime, or be about to be."""
    error = partial(DatasetError, what="a dataset cannot be published", which=manifest.name)
    going = intended_shards(store, CLEANINGS)
    if going & {item.sha256 for item in objects_of(manifest)}:
        raise error(
            seen="`ddpipe data clean-up` is deleting shards that it needs: no version used them at its start",
            do="Run again after it has finished: missing shards are encoded again.",
        )
    there = {info.key for info in store.list("shards/")}
    if gone := sorted({object_key(shard) for shard in shards_of(manifest)} - there):
        raise error(
            seen=f"of its shards, {', '.join(gone)} vanished while the others were written",
            do="Run again: missing shards are encoded again.",
        )
