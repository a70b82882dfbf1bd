"""A dataset version: what it holds, where its shards are, and the identity that follows from both.

    <store>/datasets/<name>/<dataset_id>/manifest.json   this file, written last
    <store>/shards/<sha256>.npy or .tar                  the images, shared by all versions
    <store>/columns/<sha256>.npy                         ids and labels of the samples, shared as well

The manifest is canonical JSON, and its id is the file's SHA-256: `sha256sum manifest.json` proves a version.
It stays small however many samples there are, and proves all of them by the hashes of what it names.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from unicodedata import category

from ddpipe.data.typed import typed
from ddpipe.errors import BIDIRECTIONAL, DatasetError, check_schema, listed
from ddpipe.storage import Store, open_store, read_uri

Shape = tuple[int, int, int]  # height, width and channels of an image
SCHEMA = 2  # the manifest schema of versions whose images are cropped; schema 1 had ids and labels inside
WHOLE_SCHEMA = 3  # that of versions whose images are whole: an older ddpipe would crop those that it predicts

SPLITS = ("train", "validation", "test")

TASK_NAMES = ("multiclass", "multilabel")

KINDS = ("raw", "jpeg")  # of shards
LARGEST_IMAGE = 2**29  # values of one image: more than any source gives

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCATION = re.compile(r"(?:(?P<root>.*)/)?datasets/(?P<name>[^/]+)/(?P<dataset_id>[^/]+)/manifest\.json")

Label = int | tuple[int, ...]  # Multiclass: the index of a class. Multilabel: 0 or 1 for each class.


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A shard, named by its content: the name becomes a path, which must not lead anywhere else."""

    sha256: str  # of the shard's file, in hex
    bytes: int  # size of the file
    count: int  # images in it
    kind: str = "raw"  # its format: "raw" or "jpeg", see shards.py

    def __post_init__(self) -> None:
        if self.count < 1 or self.bytes < 0:
            raise ValueError(f"a shard has {self.count} images in {self.bytes} bytes")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.sha256!r} is not a SHA-256")
        if self.kind not in KINDS:
            raise ValueError(f"a shard is of the unknown kind {self.kind!r}")


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column of the samples, named by its content, as a shard is."""

    sha256: str  # of the column's file, in hex
    bytes: int  # size of the file

    def __post_init__(self) -> None:
        if self.bytes < 0 or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.sha256!r} is not a SHA-256, or {self.bytes} no size")


@dataclass(frozen=True, slots=True)
class Split:
    """The samples of one split: sample i is the i-th image of the shards laid end to end."""

    shards: tuple[ShardRef, ...]  # in the order of the samples
    sample_ids: ColumnRef  # their names; see `ddpipe.data.index`, also for the labels
    labels: ColumnRef  # what they show
    per_class: tuple[int, ...]  # how many of them show each class
    # Which of them belong together, such as the images of one patient; None: each is on its own
    groups: ColumnRef | None = None

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(shard.count for shard in self.shards)

    @property
    def columns(self) -> tuple[ColumnRef, ...]:
        """Everything about its samples besides the images."""
        return tuple(filter(None, (self.sample_ids, self.labels, self.groups)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """One version of a dataset. The same content always has the same `dataset_id`."""

    name: str  # what the versions of this dataset have in common
    task: str  # "multiclass" or "multilabel"
    classes: tuple[str, ...]  # names, in the order of the labels' indices
    shape: Shape  # height, width and channels of every image
    dtype: str  # of the pixels: "uint8"
    splits: Mapping[str, Split]  # by the names in `SPLITS`
    mean: tuple[float, ...]  # per channel, over the training split, pixels scaled to 0..1
    std: tuple[float, ...]  # the standard deviation, per channel as well
    split_rule: Mapping[str, Any]  # how samples were assigned to the splits
    seed: int  # of the split rule
    # The source's `kind`, a `fingerprint` of its content, and what was decided about it
    source: Mapping[str, Any]
    skipped: tuple[str, ...] = ()  # samples that the source names but that could not be read
    schema: int = field(default=SCHEMA)  # of this manifest

    @property
    def dataset_id(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows or images of the source the version lacks, by the reason in a few words."""
        unreadable = {"unreadable images": len(self.skipped)} if self.skipped else {}
        return {**self.source.get("left_out", {}), **unreadable}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII only; versions without groups do not mention them."""
        fields = asdict(self)
        for split in fields["splits"].values():
            if split["groups"] is None:
                del split["groups"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, origin: str = "manifest") -> DatasetManifest:
        """Read what `to_json` wrote."""
        try:
            fields = json.loads(text)
            check_schema(fields, WHOLE_SCHEMA, origin)
        except (ValueError, RecursionError) as error:
            raise _no_manifest(origin, str(error)) from error
        if not isinstance(fields, dict) or "schema" not in fields:
            raise _no_manifest(origin, "it has no schema")
        if fields["schema"] not in {SCHEMA, WHOLE_SCHEMA}:
            raise error_for_dataset(
                origin,
                f"it has schema {fields['schema']}, this ddpipe reads {SCHEMA} and {WHOLE_SCHEMA}",
                "Prepare the dataset again with this ddpipe and remove this version: `ddpipe data rm`. If "
                "this is not a manifest, give the URI of one, as `ddpipe data ls` lists them.",
            )
        try:
            manifest = typed(cls, fields)
        except (ValueError, OverflowError) as error:
            raise error_for_dataset(
                origin, f"a field is missing, unknown or malformed ({error!r})"
            ) from error
        if problems := list(_problems(manifest)):
            raise error_for_dataset(origin, listed(problems))
        return manifest


def manifest_key(name: str, dataset_id: str) -> str:
    """The key of a version's manifest in its store."""
    return f"datasets/{name}/{dataset_id}/manifest.json"


def load_manifest(uri: str) -> DatasetManifest:
    """The manifest at `uri`, proven to be the version that its path names."""
    data = read_uri(uri)
    location = _LOCATION.fullmatch(uri)
    found = hashlib.sha256(data).hexdigest()
    if location and location["dataset_id"] != found:
        raise error_for_dataset(uri, f"its content has the id {found}: it was changed after it was published")
    return DatasetManifest.from_json(data, uri)


def store_of(manifest_uri: str) -> Store:
    """The store that holds a manifest and its shards."""
    return open_store(_located(manifest_uri)["root"] or ("/" if manifest_uri.startswith("/") else "."))


def name_in(manifest_uri: str) -> str:
    """The name of a dataset by the URI of a manifest, which is not read."""
    return _located(manifest_uri)["name"]


def _located(manifest_uri: str) -> re.Match[str]:
    if found := _LOCATION.fullmatch(manifest_uri):
        return found
    do = "Give <store>/datasets/<name>/<dataset_id>/manifest.json, as `ddpipe prepare` printed it."
    raise error_for_dataset(manifest_uri, "this is not where a store keeps a manifest", do)


def _problems(manifest: DatasetManifest) -> Iterator[str]:
    """What contradicts itself."""
    if not DATASET.fullmatch(manifest.name):  # it becomes a path, too
        yield f"name is {manifest.name!r}, not lower-case letters and digits, with . _ - between them"
    for shown in filter(None, map(printable, manifest.classes)):
        yield f"class {shown!r} has control characters"
    if manifest.task not in TASK_NAMES:
        yield f"task is {manifest.task!r}, not one of {', '.join(TASK_NAMES)}"
    if manifest.dtype != "uint8":
        yield f"dtype is {manifest.dtype!r}, not 'uint8'"
    yield from _problems_of_pixels(manifest)
    if set(manifest.splits) != set(SPLITS):
        yield f"splits are {sorted(manifest.splits)}, not {sorted(SPLITS)}"
    for name, split in manifest.splits.items():
        if not _counts_fit(split, manifest):
            yield f"{name}: the counts {list(split.per_class)[:20]} are not those of {split.count} labels"


def _problems_of_pixels(manifest: DatasetManifest) -> Iterator[str]:
    """What no image and no statistics of images can be."""
    if min(manifest.shape) < 1:
        yield f"shape is {manifest.shape}, not height, width, channels"
    elif math.prod(manifest.shape) > LARGEST_IMAGE:
        yield f"shape is {manifest.shape}: no image has so many values"
    elif not len(manifest.mean) == len(manifest.std) == manifest.shape[2]:
        yield "mean and std need one value per channel"
    if any(value < 0 for value in manifest.std):
        yield f"std is {manifest.std}, below 0"


def _counts_fit(split: Split, manifest: DatasetManifest) -> bool:
    return (
        len(split.per_class) == len(manifest.classes)
        and (manifest.task != "multiclass" or sum(split.per_class) == split.count)
        and all(0 <= count <= split.count for count in split.per_class)
    )


def _no_manifest(which: str, reason: str) -> DatasetError:
    do = "Give the URI of a manifest.json, as `ddpipe data ls` lists them."
    return error_for_dataset(which, f"it is not a dataset manifest: {reason}", do)


def error_for_dataset(
    which: str, seen: str, do: str = "Prepare the dataset again: `ddpipe prepare`."
) -> DatasetError:
    """The error of a version that cannot be read."""
    return DatasetError(what="a dataset cannot be read", which=which, seen=seen, do=do)


DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # a dataset's name; it is a part of paths


def printable(name: str) -> str | None:
    """What can be shown of a name with control or order characters, or no UTF-8; None if there are none."""
    if name.isprintable():  # none of the characters in question is
        return None
    named = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], name)
    shown = named.encode(errors="surrogateescape").decode(errors="backslashreplace")
    shown = "".join(
        char.encode("unicode_escape").decode() if category(char) == "Cc" or char in BIDIRECTIONAL else char
        for char in shown
    )
    return None if shown == name else shown
