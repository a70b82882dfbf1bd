"""The step: survey the source, decode what it holds, publish a dataset version.

    1. check the parameters and that the store can be written to
    2. survey the source: ids, labels, a fingerprint of the content
    3. known fingerprint, same parameters, all shards there: done, nothing is written
    4. decode everything; what can not be read is refused, all of it at once, or skipped if so asked
    5. publish: shards, then the manifest, then the note from input to version that step 3 looks for

Each object is written atomically and named by its content, so a prepare killed anywhere leaves at most some
shards that the next one finds in place, and two prepares at once write the same objects.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ddpipe.data.manifest import SPLITS, DatasetManifest, ShardRef, Split, load_manifest, manifest_key
from ddpipe.data.shards import SHARD_BYTES, Images, encode, shard_key
from ddpipe.errors import DatasetError, NoSuchObject, ParameterError, SourceError, listed
from ddpipe.prepare.images import Shape, Unreadable
from ddpipe.prepare.sources import SOURCES, Sample, Source, Survey
from ddpipe.prepare.split import SMALLEST_CLASS, assign
from ddpipe.storage import Store, open_store

log = logging.getLogger(__name__)

LARGEST_SIDE = 4096
"""Of an image in a raw shard, in pixels; more is a slip of the pen."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSpec:
    """What to prepare, from what, and where to."""

    source: str = field(metadata={"help": f"kind of raw data: {', '.join(SOURCES)}"})
    path: str | None = field(default=None, metadata={"help": "folder with one folder of images per class"})
    name: str = field(metadata={"help": "what the versions of this dataset have in common"})
    store: str = field(metadata={"help": "where datasets are kept: s3://bucket/prefix or a folder"})
    seed: int = field(default=0, metadata={"help": "of the split"})
    fractions: tuple[float, float, float] = field(
        default=(0.8, 0.1, 0.1), metadata={"help": "shares of train, validation and test"}
    )
    image_size: int | None = field(
        default=None, metadata={"help": "side in pixels that all images get; default: the commonest size"}
    )
    skip_bad: bool = field(default=False, metadata={"help": "leave unreadable images out, and list them"})

    def validated(self) -> PrepareSpec:
        """This very spec.

        Raises:
            ParameterError: Something can not work; all problems are listed.
        """
        if problems := list(self._problems()):
            raise ParameterError(
                what="the data can not be prepared",
                which=f"dataset {self.name!r}",
                seen=listed(problems),
                do="See `ddpipe prepare --help`.",
            )
        return self

    def _problems(self) -> Iterator[str]:
        if self.source not in SOURCES:
            yield f"source {self.source!r} is unknown: choose one of {', '.join(SOURCES)}"
        if not _NAME.fullmatch(self.name):
            yield f"name {self.name!r}: use lower-case letters, digits, and . _ - between them, at most 63"
        if self.seed < 0:
            yield f"seed {self.seed} is negative"
        if len(self.fractions) != len(SPLITS) or not all(0 < share < 1 for share in self.fractions):
            yield f"fractions {self.fractions}: give three numbers between 0 and 1, for {', '.join(SPLITS)}"
        elif not math.isclose(sum(self.fractions), 1, abs_tol=1e-6):
            yield f"fractions {self.fractions} add up to {sum(self.fractions):g}, not to 1"
        if self.image_size is not None and not 1 <= self.image_size <= LARGEST_SIDE:
            yield f"image size {self.image_size}: give 1 to {LARGEST_SIDE} pixels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A dataset version in its store.

    Attributes:
        manifest_uri: What all later steps take.
        manifest: The same, read.
        dataset_id: The version.
        reused: The version was there already, unchanged; nothing was written.
        encoded: Samples that were decoded and stored.
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
        ParameterError: The spec can not work.
        SourceError: The raw data can not become a dataset.
        StoreError: The store can not be reached or written to.
    """
    started = time.monotonic()
    spec.validated()
    source = SOURCES[spec.source](Path(spec.path) if spec.path else None)
    store = open_store(spec.store)
    store.check_writable()
    survey = source.survey()
    note = f"datasets/{spec.name}/inputs/{_input_id(spec, survey)}"
    known = _known(store, spec.name, note)
    manifest = known or _publish(store, note, _encoded(store, spec, survey, source))
    uri = f"{store.uri}/{manifest_key(spec.name, manifest.dataset_id)}"
    log.info("dataset %s %s: %s", spec.name, "is unchanged" if known else "is published", uri)
    return Prepared(
        manifest_uri=uri,
        manifest=manifest,
        dataset_id=manifest.dataset_id,
        reused=known is not None,
        encoded=0 if known else sum(len(split.sample_ids) for split in manifest.splits.values()),
        skipped=list(manifest.skipped),
        seconds=time.monotonic() - started,
    )


def _input_id(spec: PrepareSpec, survey: Survey) -> str:
    """Names everything that decides about the outcome."""
    decisive = [
        survey.fingerprint,
        spec.source,
        spec.name,
        spec.seed,
        spec.fractions,
        spec.image_size,
        spec.skip_bad,
    ]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def _known(store: Store, name: str, note: str) -> DatasetManifest | None:
    """The version that this input gave before, if it is whole."""
    try:
        manifest = load_manifest(f"{store.uri}/{manifest_key(name, store.read(note).decode())}")
    except (NoSuchObject, DatasetError):
        return None
    shards = {shard for split in manifest.splits.values() for shard in split.shards}
    return manifest if all(store.exists(shard_key(shard)) for shard in shards) else None


def _encoded(store: Store, spec: PrepareSpec, survey: Survey, source: Source) -> DatasetManifest:
    """Decode all samples and store their shards; the manifest is yet to be published."""
    _refuse_small_classes(survey.classes, survey.samples, spec)
    shape = (spec.image_size, spec.image_size, survey.shape[2]) if spec.image_size else survey.shape
    samples, images, problems = _decoded(source, survey.samples, shape)
    problems = {**survey.problems, **problems}
    _refuse_or_tell(problems, spec)
    _refuse_small_classes(survey.classes, samples, spec)
    fractions = dict(zip(SPLITS, spec.fractions, strict=True))
    places = np.array(
        assign([sample.id for sample in samples], [sample.label for sample in samples], fractions, spec.seed)
    )
    members = {split: np.flatnonzero(places == split) for split in SPLITS}
    mean, std = _statistics(images[members["train"]])
    return DatasetManifest(
        name=spec.name,
        task="multiclass",
        classes=survey.classes,
        shape=shape,
        dtype="uint8",
        splits={
            split: Split(
                shards=tuple(_stored(store, images[chosen])),
                sample_ids=tuple(samples[index].id for index in chosen),
                labels=tuple(samples[index].label for index in chosen),
            )
            for split, chosen in members.items()
        },
        mean=mean,
        std=std,
        split_rule={"kind": "hash of id", "fractions": fractions},
        seed=spec.seed,
        source={"kind": spec.source, "fingerprint": survey.fingerprint},
        skipped=tuple(sorted(problems)),
    )


def _decoded(
    source: Source, samples: Sequence[Sample], shape: Shape
) -> tuple[list[Sample], Images, dict[str, str]]:
    """The samples that can be read, their images, and why the others can not."""
    images = np.empty((len(samples), *shape), dtype=np.uint8)
    readable: list[Sample] = []
    problems: dict[str, str] = {}
    for sample in tqdm(samples, desc="decoding", unit="img", disable=None):
        try:
            images[len(readable)] = source.decode(sample, shape)
            readable.append(sample)
        except Unreadable as error:
            problems[sample.id] = str(error)
    return readable, images[: len(readable)], problems


def _stored(store: Store, images: Images) -> Iterator[ShardRef]:
    """Cut images into shards and write those that are not there yet."""
    step = max(1, SHARD_BYTES // images[0].nbytes)
    for start in range(0, len(images), step):
        shard, data = encode(images[start : start + step])
        if not store.exists(shard_key(shard)):
            store.write(shard_key(shard), data)
        yield shard


def _publish(store: Store, note: str, manifest: DatasetManifest) -> DatasetManifest:
    """From here on the version exists."""
    store.write(manifest_key(manifest.name, manifest.dataset_id), manifest.to_json().encode())
    store.write(note, manifest.dataset_id.encode())
    return manifest


def _statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels scaled to 0..1.

    From a count of the 256 levels, so it is exact and the same on every machine.
    """
    levels = np.arange(256) / 255
    counts = [np.bincount(images[..., channel].ravel(), minlength=256) for channel in range(images.shape[-1])]
    mean = [float(np.average(levels, weights=count)) for count in counts]
    variance = [
        float(np.average((levels - average) ** 2, weights=count))
        for average, count in zip(mean, counts, strict=True)
    ]
    return tuple(round(value, 6) for value in mean), tuple(round(math.sqrt(value), 6) for value in variance)


def _refuse_small_classes(classes: Sequence[str], samples: Sequence[Sample], spec: PrepareSpec) -> None:
    counts = Counter(sample.label for sample in samples)
    small = [
        f"class {name!r} has {counts[label]} readable image{'s' if counts[label] != 1 else ''}"
        for label, name in enumerate(classes)
        if counts[label] < SMALLEST_CLASS
    ]
    if small:
        raise SourceError(
            what="the raw data can not become a dataset",
            which=spec.path or spec.source,
            seen=listed(small),
            do=f"Give every class at least {SMALLEST_CLASS} images, one for each split, or remove the class.",
        )


def _refuse_or_tell(problems: Mapping[str, str], spec: PrepareSpec) -> None:
    """Unreadable samples: an error, or a warning each if the user wants to go on without them."""
    told = [f"{name}: {reason}" for name, reason in sorted(problems.items())]
    if told and not spec.skip_bad:
        raise SourceError(
            what="some images can not be read",
            which=spec.path or spec.source,
            seen=listed(told),
            do="Replace or remove these files, or leave them out with --skip-bad.",
        )
    for line in told:
        log.warning("skipped %s", line)
