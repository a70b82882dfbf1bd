"""Builds a version: rounds of splitting, planning and packing until all images are stored; then its manifest.

    round 1    split all samples ── plan what is reused ── have helpers encode ── pack the rest
    round 2    again, if images turned out to be unreadable, or to have more bits than all that were inspected

What a round has stored, the next one reuses.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddpipe.data.columns import PIECE, Rows, trimmed
from ddpipe.data.index import described
from ddpipe.data.manifest import SCHEMA, SPLITS, WHOLE_SCHEMA, DatasetManifest
from ddpipe.prepare.checks import (
    refuse_if_none_is_left,
    refuse_small_classes,
    refuse_torn_groups,
    refuse_unreadable,
    split_warnings,
)
from ddpipe.prepare.encoding import SMALL, Encoding, chosen, how_shaped, what_is_there
from ddpipe.prepare.entries import Members, sizes
from ddpipe.prepare.packing import Packer
from ddpipe.prepare.planning import Known, PackingPlan, Stored, planned
from ddpipe.prepare.report import copies, leak_warnings, lookalikes
from ddpipe.prepare.sharing import Helped
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.prepare.splitting import Places, given_splits, kept_places, split_samples
from ddpipe.sources import Survey
from ddpipe.sources.samples import Samples

log = logging.getLogger(__name__)

MEASURED = 400  # files that show proportions and bits where the size is given: the others are read once


@dataclass(frozen=True, slots=True)
class BuiltVersion:
    """A version whose shards are stored, but not yet its columns of ids and labels, nor its manifest."""

    manifest: DatasetManifest
    columns: Mapping[str, bytes]
    encoded: int
    samples: Samples
    places: Places


class VersionBuilder:
    """Stores the missing shards of one version; `broken` are hashes of shards that cannot be reused."""

    def __init__(
        self,
        spec: PrepareSpec,
        survey: Survey,
        packer: Packer,
        stored: Sequence[Stored],
        broken: set[str],
        helped: Helped,
    ) -> None:
        self._spec, self._survey, self._packer, self._helped = spec, survey, packer, helped
        self._stored, self._broken = list(stored), broken
        self._encoded = 0
        self._shards: Mapping[str, Sequence[Stored]] = {}
        self._rows = np.arange(len(survey.samples))
        self._samples = survey.samples
        self._places: Places = np.empty(0, np.int8)

    def build(self) -> BuiltVersion:
        """Store what is missing."""
        spec, survey = self._spec, self._survey
        refuse_if_none_is_left(spec, self._rows, survey.problems)
        refuse_small_classes(spec, survey.classes, survey.samples)
        self._encoding = _encoding(spec, survey, self._packer, self._stored)
        pattern = {"group_pattern": spec.group_pattern} if spec.group_pattern else {}
        rule = {"kind": "stratified", "fractions": spec.fractions, **pattern}
        self._earlier, self._rule = kept_places(
            self._packer.store, spec.name, rule, spec.split_seed, survey.samples
        )
        while not self._round():
            pass
        problems = {**survey.problems, **self._unreadable()}
        self._log_findings(problems)
        manifest, columns = manifest_of(
            spec, survey, self._rule, self._encoding, self._shards, sorted(problems)
        )
        found = sizes(one.entry.members for one in self._everything())
        exclusive = manifest.task == "multiclass"
        there = what_is_there(
            len(self._rows), len(manifest.classes), found, channels=manifest.shape[2], exclusive=exclusive
        )
        log.info("found in %s: %s", spec.where, there)
        log.info("%s", how_shaped(self._encoding.facts, found))
        return BuiltVersion(manifest, columns, self._encoded, self._samples, self._places)

    def _round(self) -> bool:
        """Split, plan and pack; whether every image is stored, all by one scale."""
        before = len(self._packer.problems)
        plans = self._planned(self._split())
        if scratch := self._helped.encoded(plans.values(), self._encoding):
            self._reuse(scratch)
            plans = self._planned(self._split())
        self._shards = self._packer.pack(plans, self._encoding, keep_going=self._spec.skip_bad)
        refuse_unreadable(self._unreadable(), self._spec)
        self._encoded += sum(plan.encoded for plan in plans.values())
        everything = self._everything()
        depth = max((int(one.entry.members.depths.max()) for one in everything), default=self._encoding.depth)
        if depth != self._encoding.depth:
            # Known only now. All images get the same scale, that of the deepest of them: encode all again.
            self._encoding, self._encoded = replace(self._encoding, depth=depth), 0
            return False
        if unreadable := len(self._packer.problems) - before:
            # The shares of the splits were counted with these: split again without them.
            self._encoded -= unreadable
            self._reuse(everything)
            self._broken = self._broken - {one.entry.shard.sha256 for one in everything}
        return not unreadable

    def _split(self) -> dict[str, Rows]:
        """The rows of each split, without those that cannot be read."""
        spec, survey, problems = self._spec, self._survey, self._packer.problems
        if problems:
            self._rows = np.setdiff1d(np.arange(len(survey.samples)), list(problems))
            self._samples = survey.samples.take(self._rows)
            refuse_if_none_is_left(spec, self._rows, {**survey.problems, **self._unreadable()})
            refuse_small_classes(spec, survey.classes, self._samples)
        earlier = None if self._earlier is None else self._earlier[self._rows]
        self._places = split_samples(
            self._samples, spec.fractions, spec.split_seed, len(survey.classes), earlier
        )
        refuse_torn_groups(spec, self._samples, self._places)
        return {split: self._rows[self._places == number] for number, split in enumerate(SPLITS)}

    def _planned(self, parts: Mapping[str, Rows]) -> dict[str, PackingPlan]:
        return {
            split: planned(rows, self._packer.known, self._stored, self._encoding, self._broken)
            for split, rows in parts.items()
        }

    def _reuse(self, more: Sequence[Stored]) -> None:
        self._stored += more
        _note_unchanged(self._survey.samples, self._packer.known, more)

    def _everything(self) -> list[Stored]:
        return [one for split in SPLITS for one in self._shards[split]]

    def _unreadable(self) -> dict[str, str]:
        """The reason why a sample cannot be read, by its id."""
        return {
            self._survey.samples.ids[row].decode(): reason for row, reason in self._packer.problems.items()
        }

    def _log_findings(self, problems: Mapping[str, str]) -> None:
        for name, reason in sorted(problems.items()):
            log.warning("skipped %s: %s", name, reason)
        parts = {split: self._samples.take(self._places == number) for number, split in enumerate(SPLITS)}
        for warning in split_warnings(self._survey.classes, parts):
            log.warning("check the data: %s", warning)
        if self._encoding.depth:
            log.info("16-bit images use %d bits at most: the upper 8 of these are kept", self._encoding.depth)
        members = {split: [one.entry.members for one in self._shards[split]] for split in SPLITS}
        for warning in leak_warnings(copies(members), lookalikes(members)):
            log.warning("%s", warning)


def _encoding(spec: PrepareSpec, survey: Survey, packer: Packer, stored: Sequence[Stored]) -> Encoding:
    """Choose the encoding; files are read for that only if the source does not know what it depends on."""
    known, seen = packer.known, np.zeros(len(survey.samples), np.bool_)
    decides = spec.image_format == "raw" or (spec.image_format == "auto" and spec.image_size <= SMALL)
    for one in stored:
        seen[one.rows[one.rows >= 0]] = True
    if not spec.verify:
        _note_unchanged(survey.samples, known, stored)
    measured = np.zeros(len(seen), np.bool_)
    step = 1 if decides else max(1, len(seen) // MEASURED)
    measured[::step] = survey.shape is None
    packer.inspect(np.flatnonzero(~known.there & (seen | measured)))
    depth = int(known.depths.max(initial=0))
    shapes = known.shapes[known.there & measured] if survey.shape is None else np.array([survey.shape])
    return replace(chosen(shapes, spec.image_format, spec.image_size, spec.reading), depth=depth)


def _note_unchanged(samples: Samples, known: Known, stored: Iterable[Stored]) -> None:
    """Reuse what earlier prepares learned about files whose stamps are unchanged."""
    for one in stored:
        members = one.entry.members
        same = (one.rows >= 0) & (samples.stamps[one.rows] == members.stamps)
        known.note(one.rows[same], members.sha256[same], members.shapes[same], members.depths[same])


def manifest_of(
    spec: PrepareSpec,
    survey: Survey,
    rule: Mapping[str, Any],
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
    groups = {split: len(np.unique(samples.units[found])) for split, found in rows.items() if is_grouped}
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
            **rule,
            **({"groups": groups} if is_grouped else {}),
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
        schema=WHOLE_SCHEMA if encoding.whole else SCHEMA,
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
