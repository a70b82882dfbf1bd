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

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpipe.data.catalogue import CLAIMS, CLEANINGS, damage, intended_shards, intent, objects_of, shards_of
from ddpipe.data.manifest import SPLITS, DatasetManifest, manifest_key
from ddpipe.data.shards import object_key
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject
from ddpipe.prepare.checks import (
    note_missing_splits,
    refuse_if_none_is_left,
    refuse_results_inside,
    refuse_small_classes,
    refuse_torn_groups,
    refuse_unreadable,
    split_warnings,
)
from ddpipe.prepare.describing import manifest_of, rule_facts
from ddpipe.prepare.encoding import SMALL, Encoding, chosen, how_shaped, what_is_there
from ddpipe.prepare.entries import Entry, lost, read_entries, sizes
from ddpipe.prepare.packing import Packer
from ddpipe.prepare.planning import Known, Stored, located, planned
from ddpipe.prepare.report import copies, lookalikes
from ddpipe.prepare.sharing import Helped, Helpers
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.prepare.splitting import Places, grouped, kept_places, split_samples, warn_of_moved
from ddpipe.sources import Survey, open_source
from ddpipe.sources.samples import Samples
from ddpipe.storage import Store, open_store

log = logging.getLogger(__name__)

FIRST = 16
"""Files that are inspected in a new data set to learn how many bits its images use: few are encoded twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A dataset version in its store.

    Attributes:
        manifest_uri: URI of the manifest, the input of all later steps.
        manifest: The manifest itself.
        dataset_id: Id of the version.
        reused: The version existed already; nothing was written.
        encoded: Number of samples that were read, encoded and stored; the others come from earlier prepares.
        skipped: Ids of unreadable samples that were left out.
        seconds: Duration.
    """

    manifest_uri: str
    manifest: DatasetManifest
    dataset_id: str
    reused: bool
    encoded: int
    skipped: list[str]
    seconds: float


def prepare(spec: PrepareSpec, helpers: Helpers | None = None) -> Prepared:
    """Turn raw data into a dataset version, the same one with and without helpers."""
    started = time.monotonic()
    spec = spec.validated().settled()
    refuse_results_inside(spec, spec.store)
    source = open_source(spec.source, spec.source_path, spec.columns)
    store = open_store(spec.store)
    store.check_writable()
    survey = source.survey()
    refuse_unreadable(survey.problems, spec)
    if spec.group_pattern:
        survey = grouped(survey, spec.group_pattern, spec.where)
    packer = Packer(source, survey, store, spec.name, remote="://" in spec.source_path)
    entries = read_entries(store, spec.name)
    stored = located(entries, survey.samples)
    helped = Helped(helpers, spec, survey, store)
    note_missing_splits(survey.samples)
    version = _version(spec, survey, packer, stored, _broken(spec, store, entries), helped)
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
    going = intended_shards(store, CLEANINGS)
    if going & {item.sha256 for item in objects_of(manifest)}:
        raise DatasetError(
            what="a dataset cannot be published",
            which=manifest.name,
            seen="`ddpipe data clean-up` is deleting shards that it needs: no version used them at its start",
            do="Run again after it has finished: missing shards are encoded again.",
        )
    there = {info.key for info in store.list("shards/")}
    if gone := sorted({object_key(shard) for shard in shards_of(manifest)} - there):
        raise DatasetError(
            what="a dataset cannot be published",
            which=manifest.name,
            seen=f"of its shards, {', '.join(gone)} vanished while the others were written",
            do="Run again: missing shards are encoded again.",
        )


@dataclass(frozen=True, slots=True)
class _Version:
    """A manifest whose shards are stored.

    Attributes:
        manifest: Not published yet.
        columns: Its ids and labels, by their keys; not published yet.
        encoded: Number of samples that had to be encoded.
        samples: All samples of the version.
        places: Their splits.
    """

    manifest: DatasetManifest
    columns: Mapping[str, bytes]
    encoded: int
    samples: Samples
    places: Places


def _version(
    spec: PrepareSpec,
    survey: Survey,
    packer: Packer,
    stored: list[Stored],
    broken: set[str],
    helped: Helped,
) -> _Version:
    """Store the missing shards; the manifest is not published yet."""
    everyone = np.arange(len(survey.samples))
    refuse_if_none_is_left(spec, everyone, survey.problems)
    refuse_small_classes(spec, survey.classes, survey.samples)
    encoding = _encoding(spec, survey, packer, stored)
    earlier = kept_places(packer.store, spec.name, rule_facts(spec), spec.split_seed, survey.samples)
    encoded = 0
    while True:
        problems_before = len(packer.problems)
        rows = np.setdiff1d(everyone, list(packer.problems)) if packer.problems else everyone
        samples = survey.samples.take(rows) if packer.problems else survey.samples
        if spec.skip_bad:
            refuse_if_none_is_left(spec, rows, _problems(survey, packer))
            refuse_small_classes(spec, survey.classes, samples)
        before = earlier if earlier is None else earlier[rows]
        places = split_samples(samples, spec.fractions, spec.split_seed, len(survey.classes), before)
        refuse_torn_groups(spec, samples, places)
        parts = {split: rows[places == number] for number, split in enumerate(SPLITS)}
        plans = {split: planned(parts[split], packer.known, stored, encoding, broken) for split in SPLITS}
        if scratch := helped.encoded(plans.values(), encoding):
            stored = [*stored, *scratch]
            _note_unchanged(survey.samples, packer.known, scratch)
            plans = {split: planned(parts[split], packer.known, stored, encoding, broken) for split in SPLITS}
        shards = packer.pack(plans, encoding, keep_going=spec.skip_bad)
        refuse_unreadable(_named(packer), spec)
        encoded += sum(plan.encoded for plan in plans.values())
        everything = [one for split in SPLITS for one in shards[split]]
        depth = max((int(one.entry.members.depths.max()) for one in everything), default=encoding.depth)
        if depth != encoding.depth:
            # Known only now. All images get the same scale, that of the deepest of them: encode all again.
            encoding, encoded = encoding.with_depth(depth), 0
            continue
        if len(packer.problems) == problems_before:
            break
        # Some cannot be read: split again without them, and reuse what is stored by now.
        encoded -= len(packer.problems) - problems_before
        stored = [*stored, *everything]
        broken = broken - {one.entry.shard.sha256 for one in everything}
        _note_unchanged(survey.samples, packer.known, everything)
    problems = _problems(survey, packer)
    for name, reason in sorted(problems.items()):
        log.warning("skipped %s: %s", name, reason)
    for warning in split_warnings(
        survey.classes, {split: survey.samples.take(parts[split]) for split in SPLITS}
    ):
        log.warning("check the data: %s", warning)
    if encoding.depth:
        log.info("16-bit images use %d bits at most: the upper 8 of these are kept", encoding.depth)
    _warn_of_copies(shards)
    manifest, columns = manifest_of(spec, survey, encoding, shards, sorted(problems))
    found = sizes(one.entry.members for one in everything)
    there = what_is_there(
        len(rows),
        len(manifest.classes),
        found,
        channels=manifest.shape[2],
        exclusive=manifest.task == "multiclass",
    )
    log.info("found in %s: %s", spec.where, there)
    log.info("%s", how_shaped(encoding.facts, found))
    return _Version(manifest, columns, encoded, samples, places)


def _named(packer: Packer) -> dict[str, str]:
    """The reason why a sample cannot be read, by its id."""
    return {packer.samples.ids[row].decode(): reason for row, reason in packer.problems.items()}


def _problems(survey: Survey, packer: Packer) -> dict[str, str]:
    """The reasons of the survey and of the packer, by sample id."""
    return {**survey.problems, **_named(packer)}


def _encoding(spec: PrepareSpec, survey: Survey, packer: Packer, stored: Sequence[Stored]) -> Encoding:
    """Inspect the files as far as needed, and choose the encoding.

    New files are read only once, to be encoded, unless their sizes and colors determine the encoding and the
    source does not know these.
    """
    known, seen = packer.known, np.zeros(len(survey.samples), np.bool_)
    decides = spec.image_format == "raw" or (spec.image_format == "auto" and spec.image_size <= SMALL)
    for one in stored:
        seen[one.rows[one.rows >= 0]] = True
    if not spec.verify:
        _note_unchanged(survey.samples, known, stored)
    packer.inspect(np.flatnonzero(~known.there & (seen | (decides and survey.shape is None))))
    if not known.there.any():
        packer.inspect(np.arange(min(FIRST, len(survey.samples))))
    depth = int(known.depths.max(initial=0))
    shapes = known.shapes[known.there] if survey.shape is None else np.array([survey.shape])
    found = shapes if decides else ()
    return chosen(found, spec.image_format, spec.image_size, spec.reading).with_depth(depth)


def _note_unchanged(samples: Samples, known: Known, stored: Iterable[Stored]) -> None:
    """Reuse what earlier prepares learned about files whose stamps are unchanged."""
    for one in stored:
        members = one.entry.members
        same = (one.rows >= 0) & (samples.stamps[one.rows] == members.stamps)
        known.note(one.rows[same], members.sha256[same], members.shapes[same], members.depths[same])


def _warn_of_copies(shards: Mapping[str, Sequence[Stored]]) -> None:
    """Warn of the same file, or picture, in two splits: a test on it measures memory, not learning."""
    members = {split: [one.entry.members for one in shards[split]] for split in SPLITS}
    kinds = {"equal images": copies(members), "pairs of images that look alike": lookalikes(members)}
    for kind, found in kinds.items():
        if leaks := [ids for ids in found if len(set(ids.values())) > 1]:
            first = {split: name for name, split in reversed(leaks[0].items())}  # one of each split
            example = ", ".join(f"{first[split]} ({split})" for split in SPLITS if split in first)
            log.warning("%s are in more than one split: %d, such as %s", kind, len(leaks), example)
