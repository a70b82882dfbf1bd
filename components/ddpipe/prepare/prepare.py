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
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpipe.data.catalogue import damage, objects_of, shards_of
from ddpipe.data.columns import text
from ddpipe.data.index import described
from ddpipe.data.manifest import SPLITS, DatasetManifest, manifest_key
from ddpipe.data.notes import CLAIMS, CLEANINGS, noted, noted_shards
from ddpipe.data.shards import object_key
from ddpipe.errors import CorruptObject, DatasetError, NoSuchObject, SourceError, listed
from ddpipe.prepare.doubts import doubts
from ddpipe.prepare.encoding import SMALL, Encoding, chosen
from ddpipe.prepare.grouping import grouped
from ddpipe.prepare.index import Entry, Member, lost, read_entries
from ddpipe.prepare.packing import Known, Packer, planned
from ddpipe.prepare.report import copies, lookalikes
from ddpipe.prepare.shaping import how_shaped
from ddpipe.prepare.sources import Sample, Survey, open_source
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.prepare.split import assign, shown
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
    packer = Packer(source, store, spec.name, remote="://" in spec.source_path)
    entries = read_entries(store, spec.name)
    version = _version(spec, survey, packer, entries, _broken(spec, store, entries))
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
    spec: PrepareSpec, survey: Survey, packer: Packer, entries: list[Entry], broken: set[str]
) -> _Version:
    """Store what is not there yet; the manifest is yet to be published."""
    _refuse_if_none_is_left(spec, survey.samples, survey.problems)
    _refuse_small_classes(spec, survey.classes, survey.samples)
    encoding = _encoding(spec, survey.samples, packer, entries)
    encoded = 0
    while True:
        problems_before = len(packer.problems)
        samples = [sample for sample in survey.samples if sample.id not in packer.problems]
        if spec.skip_bad:
            _refuse_if_none_is_left(spec, samples, {**survey.problems, **packer.problems})
            _refuse_small_classes(spec, survey.classes, samples)
        dealt = _dealt(spec, samples)
        plans = {split: planned(dealt[split], packer.known, entries, encoding, broken) for split in SPLITS}
        shards = packer.pack(plans, encoding, keep_going=spec.skip_bad)
        _refuse(packer.problems, spec)
        encoded += sum(plan.encoded for plan in plans.values())
        depth = max(
            (member.depth for split in SPLITS for entry in shards[split] for member in entry.members),
            default=encoding.depth,
        )
        if depth != encoding.depth:
            # Known only now; all images are scaled alike, by what the deepest of them uses.
            encoding, encoded = encoding.with_depth(depth), 0
            continue
        if len(packer.problems) == problems_before:
            break
        # Some cannot be read: deal out again without them, and take over what is stored by now.
        encoded -= len(packer.problems) - problems_before
        entries = [*entries, *(entry for split in SPLITS for entry in shards[split])]
        broken = broken - {entry.shard.sha256 for split in SPLITS for entry in shards[split]}
        packer.known.update(_unchanged(samples, entries))
    problems = {**survey.problems, **packer.problems}
    for name, reason in sorted(problems.items()):
        log.warning("skipped %s: %s", name, reason)
    for doubt in doubts(survey.classes, dealt):
        log.warning("doubtful: %s", doubt)
    if encoding.depth:
        log.info("16-bit images use %d bits at most: the upper 8 of these are kept", encoding.depth)
    sizes = Counter(
        member.shape[:2] for split in SPLITS for entry in shards[split] for member in entry.members
    )
    log.info("%s", how_shaped(encoding.facts, sizes))
    _warn_of_copies(shards)
    manifest, columns = _manifest(spec, survey, encoding, shards, sorted(problems))
    return _Version(manifest, columns, encoded)


def _encoding(
    spec: PrepareSpec, samples: Sequence[Sample], packer: Packer, entries: Sequence[Entry]
) -> Encoding:
    """Look at the files as far as needed, and choose how to keep them.

    What was never seen is read only once, to be encoded, unless its size and colour decide about all.
    """
    decides = spec.image_format == "raw" or (spec.image_format == "auto" and spec.image_size <= SMALL)
    seen = {member.id for entry in entries for member in entry.members}
    packer.known.update({} if spec.verify else _unchanged(samples, entries))
    packer.inspect(
        [sample for sample in samples if sample.id not in packer.known and (decides or sample.id in seen)]
    )
    if not packer.known:
        packer.inspect(samples[:FIRST])
    shapes = [known.shape for known in packer.known.values()] if decides else []
    depth = max((known.depth for known in packer.known.values()), default=0)
    return chosen(shapes, spec.image_format, spec.image_size, spec.quality, spec.view).with_depth(depth)


def _unchanged(samples: Sequence[Sample], entries: Sequence[Entry]) -> dict[str, Known]:
    """What is known of the samples whose files have the stamps that they had."""
    members = {(member.id, member.stamp): member for entry in entries for member in entry.members}
    found = {sample.id: members.get((sample.id, sample.stamp)) for sample in samples}
    return {
        name: Known(name, member.stamp, member.sha256, member.shape, member.depth)
        for name, member in found.items()
        if member
    }


def _dealt(spec: PrepareSpec, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples of each split.

    Raises:
        SourceError: The source itself puts parts of one group into different splits, or rules folds out.
    """
    units = [sample.group or sample.id for sample in samples]
    given = [sample.split for sample in samples]
    if spec.folds and "validation" in given:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"folds is {spec.folds}, but the source itself says which images are for validation",
            do="Set folds to 0, or leave the split to ddpipe.",
        )
    places = assign(units, [sample.label for sample in samples], spec.rule, given)
    splits: dict[str, set[str]] = defaultdict(set)
    for unit, place in zip(units, places, strict=True):
        splits[unit].add(place)
    if torn := [
        f"group {unit!r} is in {', '.join(sorted(found))}" for unit, found in splits.items() if len(found) > 1
    ]:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=listed(torn),
            do="Put each group into one split, or leave the split to ddpipe.",
        )
    return {
        split: [sample for sample, place in zip(samples, places, strict=True) if place == split]
        for split in SPLITS
    }


def _manifest(
    spec: PrepareSpec,
    survey: Survey,
    encoding: Encoding,
    shards: Mapping[str, Sequence[Entry]],
    skipped: Sequence[str],
) -> tuple[DatasetManifest, dict[str, bytes]]:
    labels = {sample.id: sample.label for sample in survey.samples}
    members = {split: [member for entry in shards[split] for member in entry.members] for split in SPLITS}
    everyone = [member for split in SPLITS for member in members[split]]
    shape = encoding.handed_out(max(member.shape[2] for member in everyone))
    mean, std = _statistics(members["train"], shape[2])
    content = sorted(f"{member.id}\0{member.sha256}\n" for member in everyone)
    given = sorted({sample.split for sample in survey.samples} - {""})
    groups = {sample.id: sample.group for sample in survey.samples if sample.group}
    parts = {
        split: described(
            [entry.shard for entry in shards[split]],
            text(member.id for member in members[split]),
            np.array([labels[member.id] for member in members[split]], np.int64),
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
            "kind": "hash of group" if groups else "hash of id",
            "fractions": spec.rule.fractions,
            **({"groups": _counted(groups, members)} if groups else {}),
            **({"group_pattern": spec.group_pattern} if spec.group_pattern else {}),
            **({"given": given} if given else {}),
            **({"stratify": spec.stratify} if spec.rule.exact else {}),
            **({"folds": spec.folds, "fold": spec.fold} if spec.folds else {}),
        },
        seed=spec.split_seed,
        source={
            "kind": spec.source,
            "fingerprint": hashlib.sha256("".join(content).encode()).hexdigest(),
            "encoding": encoding.facts,
            **survey.facts,
        },
        skipped=tuple(skipped),
    )
    return manifest, {key: data for _, objects in parts.values() for key, data in objects.items()}


def _counted(groups: Mapping[str, str], members: Mapping[str, Sequence[Member]]) -> dict[str, int]:
    """How many groups each split has."""
    return {
        split: len({groups.get(member.id, member.id) for member in found}) for split, found in members.items()
    }


def _statistics(members: Sequence[Member], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels scaled to 0..1; exact, from sums of whole numbers."""
    count = sum(member.moments[0] for member in members)
    mean, std = [], []
    for channel in range(channels):
        # A grey image has the same values in every channel.
        places = [1 + 2 * channel if len(member.moments) > 3 else 1 for member in members]  # noqa: PLR2004
        total = sum(member.moments[place] for member, place in zip(members, places, strict=True))
        squares = sum(member.moments[place + 1] for member, place in zip(members, places, strict=True))
        mean.append(round(total / count / 255, 6))
        std.append(round(math.sqrt(squares * count - total**2) / count / 255, 6))
    return tuple(mean), tuple(std)


def _warn_of_copies(shards: Mapping[str, Sequence[Entry]]) -> None:
    """The same file, or picture, in two splits: what is measured on it was learned by heart."""
    members = {split: [member for entry in shards[split] for member in entry.members] for split in SPLITS}
    kinds = {"images": copies(members), "pairs of images that look alike": lookalikes(members)}
    for kind, found in kinds.items():
        if leaks := [ids for ids in found if len(set(ids.values())) > 1]:
            example = ", ".join(f"{name} ({split})" for name, split in leaks[0].items())
            log.warning("%d %s are in more than one split, such as %s", len(leaks), kind, example)


def _refuse_small_classes(spec: PrepareSpec, classes: Sequence[str], samples: Sequence[Sample]) -> None:
    """There have to be two classes, and each in every split or fold that is ours to fill."""
    if len(classes) < 2:  # noqa: PLR2004
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"it has only one class, {classes[0]!r}" if classes else "it has no class",
            do="Give images of at least two classes.",
        )
    pieces = spec.rule.pieces({sample.split for sample in samples})
    units = {
        (sample.group or sample.id, label)
        for sample in samples
        if sample.split in {"", "train"}
        for label in shown(sample.label)
    }
    counts = Counter(label for _, label in units)
    noun = "group" if any(sample.group for sample in samples) else "image"
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


def _refuse_if_none_is_left(
    spec: PrepareSpec, samples: Sequence[Sample], problems: Mapping[str, str]
) -> None:
    """Without what cannot be read there has to be something."""
    if not samples:
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
            do="Replace or remove these files, or leave them out with --skip-bad.",
        )
