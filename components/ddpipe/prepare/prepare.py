"""The step: survey the source, encode what it holds, publish a dataset version.

    1. check the parameters and that the store can be written to
    2. survey the source: ids, labels and stamps, without reading its images
    3. deal the samples out to splits
    4. plan: what earlier prepares stored and is unchanged is taken over (index.py)
    5. read and encode the rest; what cannot be read is refused, all of it at once, or skipped if so asked
    6. publish: the manifest comes last

Each object is written atomically and named by its content, so a prepare killed anywhere leaves at most some
shards that the next one takes over, and two prepares at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpipe.data.catalogue import damage, objects_of, shards_of
from ddpipe.data.columns import PIECE, Rows, trimmed
from ddpipe.data.index import described
from ddpipe.data.manifest import SPLITS, DatasetManifest, manifest_key
from ddpipe.data.notes import CLAIMS, CLEANINGS, noted, noted_shards
from ddpipe.data.shards import object_key
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject, SourceError, listed
from ddpipe.prepare.dealing import Places, dealt, given_splits, numbered_units, shown_by_units
from ddpipe.prepare.doubts import doubts
from ddpipe.prepare.encoding import SMALL, Encoding, chosen
from ddpipe.prepare.grouping import grouped
from ddpipe.prepare.index import Entry, Members, lost, read_entries, sizes
from ddpipe.prepare.packing import Known, Packer, Stored, planned
from ddpipe.prepare.report import copies, lookalikes
from ddpipe.prepare.shaping import how_shaped
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import Survey, open_source
from ddpipe.sources.samples import Finder, Samples
from ddpipe.spelling import option
from ddpipe.storage import Store, open_store

log = logging.getLogger(__name__)

FIRST = 16
"""Files of a new data set that show how many bits its images use, so that they are rarely encoded twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A dataset version in its store.

    Attributes:
        manifest_uri: What all later steps take.
        manifest: The same, read.
        dataset_id: The version.
        reused: The version was there already, unchanged; nothing was written.
        encoded: Samples that were read, encoded and stored; all others were there from earlier prepares.
        skipped: Samples that could not be read and were left out.
        seconds: What it took.
    """

    manifest_uri: str
    manifest: DatasetManifest
    dataset_id: str
    reused: bool
    encoded: int
    skipped: list[str]
    seconds: float


def prepare(spec: PrepareSpec) -> Prepared:
    """Bring raw data into a dataset version.

    Raises:
        ParameterError: The spec cannot work.
        SourceError: The raw data cannot become a dataset.
        StoreError: The store cannot be reached or written to.
    """
    started = time.monotonic()
    spec.validated()
    source = open_source(spec.source, spec.source_path, spec.columns)
    store = open_store(spec.store)
    store.check_writable()
    survey = source.survey()
    _refuse(survey.problems, spec)
    if spec.group_pattern:
        survey = grouped(survey, spec.group_pattern, spec.where)
    packer = Packer(source, survey, store, spec.name, remote="://" in spec.source_path)
    entries = read_entries(store, spec.name)
    stored = _located(entries, survey.samples)
    version = _version(spec, survey, packer, stored, _broken(spec, store, entries))
    manifest = version.manifest
    key = manifest_key(spec.name, manifest.dataset_id)
    objects = {**version.columns, key: manifest.to_json().encode()}
    damaged = [key for key, content in objects.items() if not _is_published(store, key, content)]
    reused = not version.encoded and not damaged
    if not reused:
        with noted(store, CLAIMS, {item.sha256 for item in objects_of(manifest)}):
            _refuse_if_lost(store, manifest)
            for place, content in objects.items():  # the manifest comes last
                store.write(place, content)
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


def _located(entries: Sequence[Entry], samples: Samples) -> list[Stored]:
    """Earlier shards, with the numbers of the samples whose images they hold."""
    find = Finder(samples.ids) if entries else None
    return [Stored(entry, find.rows(entry.members.ids)) for entry in entries if find]


def _broken(spec: PrepareSpec, store: Store, entries: Sequence[Entry]) -> set[str]:
    """Hashes of the shards that cannot be taken over: what is lost, and on request what is damaged."""
    if not spec.verify:
        return lost(entries, store)
    found = damage({entry.shard for entry in entries}, store)
    for problem in found.values():
        log.warning("damaged: %s", problem)
    return {shard.sha256 for shard in found}


def _is_published(store: Store, key: str, content: bytes) -> bool:
    """Whether an object is in its place, whole."""
    try:
        if store.read(key) == content:
            return True
    except NoSuchObject:
        return False
    except CorruptObject:
        pass
    log.warning("damaged: %s is not as it was published and is written again", key)
    return False


def _refuse_if_lost(store: Store, manifest: DatasetManifest) -> None:
    """A shard that was taken over may have been cleaned up meanwhile, or be about to."""
    going = noted_shards(store, CLEANINGS)
    if going & {item.sha256 for item in objects_of(manifest)}:
        raise DatasetError(
            what="a dataset cannot be published",
            which=manifest.name,
            seen="`ddpipe data gc` is deleting shards that it needs: no version needed them when it began",
            do="Run again when that is done: what is missing is encoded anew.",
        )
    there = {info.key for info in store.list("shards/")}
    if gone := sorted({object_key(shard) for shard in shards_of(manifest)} - there):
        raise DatasetError(
            what="a dataset cannot be published",
            which=manifest.name,
            seen=f"of its shards, {', '.join(gone)} vanished while the others were written",
            do="Run again: what is missing is encoded anew.",
        )


@dataclass(frozen=True, slots=True)
class _Version:
    """A manifest whose shards are stored.

    Attributes:
        manifest: Yet to be published.
        columns: Its ids and labels, by their keys: likewise.
        encoded: How many of its samples had to be encoded for it.
    """

    manifest: DatasetManifest
    columns: Mapping[str, bytes]
    encoded: int


def _version(
    spec: PrepareSpec, survey: Survey, packer: Packer, stored: list[Stored], broken: set[str]
) -> _Version:
    """Store what is not there yet; the manifest is yet to be published."""
    everyone = np.arange(len(survey.samples))
    _refuse_if_none_is_left(spec, everyone, survey.problems)
    _refuse_small_classes(spec, survey.classes, survey.samples)
    encoding = _encoding(spec, survey, packer, stored)
    encoded = 0
    while True:
        problems_before = len(packer.problems)
        rows = np.setdiff1d(everyone, list(packer.problems)) if packer.problems else everyone
        samples = survey.samples.take(rows) if packer.problems else survey.samples
        if spec.skip_bad:
            _refuse_if_none_is_left(spec, rows, _problems(survey, packer))
            _refuse_small_classes(spec, survey.classes, samples)
        places = _dealt(spec, samples, len(survey.classes))
        parts = {split: rows[places == number] for number, split in enumerate(SPLITS)}
        plans = {split: planned(parts[split], packer.known, stored, encoding, broken) for split in SPLITS}
        shards = packer.pack(plans, encoding, keep_going=spec.skip_bad)
        _refuse(_named(packer), spec)
        encoded += sum(plan.encoded for plan in plans.values())
        everything = [one for split in SPLITS for one in shards[split]]
        depth = max((int(one.entry.members.depths.max()) for one in everything), default=encoding.depth)
        if depth != encoding.depth:
            # Known only now; all images are scaled alike, by what the deepest of them uses.
            encoding, encoded = encoding.with_depth(depth), 0
            continue
        if len(packer.problems) == problems_before:
            break
        # Some cannot be read: deal out again without them, and take over what is stored by now.
        encoded -= len(packer.problems) - problems_before
        stored = [*stored, *everything]
        broken = broken - {one.entry.shard.sha256 for one in everything}
        _note_unchanged(survey.samples, packer.known, everything)
    problems = _problems(survey, packer)
    for name, reason in sorted(problems.items()):
        log.warning("skipped %s: %s", name, reason)
    for doubt in doubts(survey.classes, {split: survey.samples.take(parts[split]) for split in SPLITS}):
        log.warning("doubtful: %s", doubt)
    if encoding.depth:
        log.info("16-bit images use %d bits at most: the upper 8 of these are kept", encoding.depth)
    log.info("%s", how_shaped(encoding.facts, sizes(one.entry.members for one in everything)))
    _warn_of_copies(shards)
    manifest, columns = _manifest(spec, survey, encoding, shards, sorted(problems))
    return _Version(manifest, columns, encoded)


def _named(packer: Packer) -> dict[str, str]:
    """Why samples cannot be read, by their ids."""
    return {packer.samples.ids[row].decode(): reason for row, reason in packer.problems.items()}


def _problems(survey: Survey, packer: Packer) -> dict[str, str]:
    """All that cannot be used."""
    return {**survey.problems, **_named(packer)}


def _encoding(spec: PrepareSpec, survey: Survey, packer: Packer, stored: Sequence[Stored]) -> Encoding:
    """Look at the files as far as needed, and choose how to keep them.

    What was never seen is read only once, to be encoded, unless its size and colour decide about all and the
    source does not know them.
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
    return chosen(found, spec.image_format, spec.image_size, spec.quality, spec.view).with_depth(depth)


def _note_unchanged(samples: Samples, known: Known, stored: Iterable[Stored]) -> None:
    """Take for known what was found out about files that have the stamps that they had."""
    for one in stored:
        members = one.entry.members
        same = (one.rows >= 0) & (samples.stamps[one.rows] == members.stamps)
        known.note(one.rows[same], members.sha256[same], members.shapes[same], members.depths[same])


def _dealt(spec: PrepareSpec, samples: Samples, classes: int) -> Places:
    """The split of each sample.

    Raises:
        SourceError: The source itself puts parts of one group into different splits, or rules folds out.
    """
    if spec.folds and "validation" in given_splits(samples):
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"folds is {spec.folds}, but the source itself says which images are for validation",
            do="Set folds to 0, or leave the split to ddpipe.",
        )
    places = dealt(samples, spec.rule, classes)
    names, unit = numbered_units(samples)
    in_splits = np.zeros((len(names), len(SPLITS)), np.bool_)
    in_splits[unit, places] = True
    if torn := [
        f"group {names[number].decode()!r} is in "
        + ", ".join(sorted(split for split, there in zip(SPLITS, in_splits[number], strict=True) if there))
        for number in np.flatnonzero(in_splits.sum(axis=1) > 1)
    ]:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=listed(torn),
            do="Put each group into one split, or leave the split to ddpipe.",
        )
    return places


def _manifest(
    spec: PrepareSpec,
    survey: Survey,
    encoding: Encoding,
    shards: Mapping[str, Sequence[Stored]],
    skipped: Sequence[str],
) -> tuple[DatasetManifest, dict[str, bytes]]:
    samples = survey.samples
    nobody = np.empty(0, np.int64)
    rows = {split: np.concatenate([nobody, *(one.rows for one in shards[split])]) for split in SPLITS}
    everything = [one.entry.members for split in SPLITS for one in shards[split]]
    shape = encoding.handed_out(max(int(members.shapes[:, 2].max()) for members in everything))
    mean, std = _statistics([one.entry.members for one in shards["train"]], shape[2])
    given = [split for split in given_splits(samples) if split]
    is_grouped = bool((samples.groups != b"").any())
    parts = {
        split: described(
            [one.entry.shard for one in shards[split]],
            samples.ids[rows[split]],
            samples.labels[rows[split]],
            len(survey.classes),
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
            "kind": "hash of group" if is_grouped else "hash of id",
            "fractions": spec.rule.fractions,
            **({"groups": _counted(samples, rows)} if is_grouped else {}),
            **({"group_pattern": spec.group_pattern} if spec.group_pattern else {}),
            **({"given": given} if given else {}),
            **({"stratify": spec.stratify} if spec.rule.exact else {}),
            **({"folds": spec.folds, "fold": spec.fold} if spec.folds else {}),
        },
        seed=spec.split_seed,
        source={
            "kind": spec.source,
            "fingerprint": _fingerprint(everything),
            "encoding": encoding.facts,
            **survey.facts,
        },
        skipped=tuple(skipped),
    )
    return manifest, {key: data for _, objects in parts.values() for key, data in objects.items()}


def _fingerprint(everything: Sequence[Members]) -> str:
    """Of all files and their ids, whatever their order."""
    ids = trimmed(np.concatenate([members.ids for members in everything]))
    hashes = np.concatenate([members.sha256 for members in everything])
    order, digest = np.argsort(ids, kind="stable"), hashlib.sha256()
    for column in (ids, hashes):
        for start in range(0, len(order), PIECE):
            digest.update(column[order[start : start + PIECE]].data)
    return digest.hexdigest()


def _counted(samples: Samples, rows: Mapping[str, Rows]) -> dict[str, int]:
    """How many groups each split has."""
    return {split: len(np.unique(samples.units[found])) for split, found in rows.items()}


def _statistics(parts: Sequence[Members], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels scaled to 0..1; exact, from sums of whole numbers."""
    sums = [[int(value) for value in members.moments.sum(axis=0)] for members in parts]
    count = sum(row[0] for row in sums)
    mean, std = [], []
    for channel in range(channels):
        # A grey image has the same values in every channel.
        places = [1 + 2 * channel if len(row) > 3 else 1 for row in sums]  # noqa: PLR2004
        total = sum(row[place] for row, place in zip(sums, places, strict=True))
        squares = sum(row[place + 1] for row, place in zip(sums, places, strict=True))
        mean.append(round(total / count / 255, 6))
        std.append(round(math.sqrt(squares * count - total**2) / count / 255, 6))
    return tuple(mean), tuple(std)


def _warn_of_copies(shards: Mapping[str, Sequence[Stored]]) -> None:
    """The same file, or picture, in two splits: what is measured on it was learned by heart."""
    members = {split: [one.entry.members for one in shards[split]] for split in SPLITS}
    kinds = {"images": copies(members), "pairs of images that look alike": lookalikes(members)}
    for kind, found in kinds.items():
        if leaks := [ids for ids in found if len(set(ids.values())) > 1]:
            example = ", ".join(f"{name} ({split})" for name, split in leaks[0].items())
            log.warning("%d %s are in more than one split, such as %s", len(leaks), kind, example)


def _refuse_small_classes(spec: PrepareSpec, classes: Sequence[str], samples: Samples) -> None:
    """There have to be two classes, and each in every split or fold that is ours to fill."""
    if len(classes) < 2:  # noqa: PLR2004
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"it has only one class, {classes[0]!r}" if classes else "it has no class",
            do="Give images of at least two classes.",
        )
    pieces = spec.rule.pieces(given_splits(samples))
    _, unit = numbered_units(samples)
    _, shown = shown_by_units(samples, unit, len(classes))
    counts = np.bincount(shown, minlength=len(classes)).tolist()
    noun = "group" if (samples.groups != b"").any() else "image"
    small = [
        f"class {name!r} has {counts[label]} {noun}{'s' if counts[label] != 1 else ''}"
        for label, name in enumerate(classes)
        if counts[label] < len(pieces)
    ]
    if small:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=listed(small),
            do=f"Give every class at least {len(pieces)} of them ({', '.join(reversed(pieces))}), or remove "
            "the class.",
        )


def _refuse_if_none_is_left(spec: PrepareSpec, rows: Rows, problems: Mapping[str, str]) -> None:
    """Without what cannot be read there has to be something."""
    if not len(rows):
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"no image is left without those that cannot be read; {_told(problems)}",
            do="Replace these files, or give the path of other data.",
        )


def _told(problems: Mapping[str, str]) -> str:
    return listed([f"{name}: {reason}" for name, reason in sorted(problems.items())])


def _refuse(problems: Mapping[str, str], spec: PrepareSpec) -> None:
    """Samples that cannot be read are an error, unless the user wants to go on without them."""
    if problems and not spec.skip_bad:
        raise SourceError(
            what="some images cannot be read",
            which=spec.where,
            seen=_told(problems),
            do=f"Replace or remove these files, or leave them out with {option('skip_bad')}.",
        )
