"""HTML report on a dataset version, in one file: a table of its classes and a sheet of its images."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddpipe.data.catalogue import per_class
from ddpipe.data.columns import Rows, Strings, Text, text
from ddpipe.data.index import SampleIndex, open_index
from ddpipe.data.manifest import SPLITS, DatasetManifest
from ddpipe.data.reader import SplitReader, open_shards
from ddpipe.data.shards import Images
from ddpipe.data.versions import origin
from ddpipe.prepare.checks import class_warnings
from ddpipe.prepare.duplicates import near_duplicates
from ddpipe.prepare.encoding import Sizes, how_shaped, shown_size, target_of
from ddpipe.prepare.entries import Members, members_of, sizes
from ddpipe.storage import Store
from ddpipe.templates import environment, png_uri, with_contents

PER_CLASS = 12  # images in a class's row of the contact sheet
TILE = 48  # smallest side of an image on the sheet; smaller ones are enlarged, larger ones get twice it

GAP = 2
PAIR = 2  # pictures of each group of copies

LISTED = 10  # number of copies that are listed; all are counted
STEPS = 2  # bars of the histogram of proportions for each factor of two
BOX = 40  # longer side of a drawing, in pixels


def data_report_html(manifest: DatasetManifest, store: Store) -> str:
    """A self-contained HTML page about a dataset version."""
    counts = {split: per_class(manifest, split) for split in SPLITS}
    labels = open_index(manifest, "train", store).labels
    shown = np.concatenate([_first(labels, label) for label in range(len(manifest.classes))])
    train = _part(manifest, "train", store, shown)
    rows = [
        {
            "name": name,
            "counts": [counts[split][name] for split in SPLITS],
            "total": sum(counts[split][name] for split in SPLITS),
            "picture": _picture(train.images(_first(train.labels, label))),
        }
        for label, name in enumerate(manifest.classes)
    ]
    totals = [manifest.splits[split].count for split in SPLITS]
    members = members_of(manifest, store)
    same, alike = copies(members), lookalikes(members)
    shapes = sizes(part for found in members.values() for part in found)
    encoding = manifest.source.get("encoding", {})
    page = (
        environment("ddpipe.prepare")
        .get_template("report.html.j2")
        .render(
            manifest=manifest,
            made=how_split(manifest),
            splits=SPLITS,
            rows=rows,
            totals=totals,
            total=sum(totals),
            size=shown_size(manifest.shape),
            proportions=list(proportions(shapes, encoding)) if encoding else [],
            shape=how_shaped(encoding, shapes) if encoding else "",
            whole="fit" in encoding,
            location=origin(manifest, store).get("location"),
            copies=same,
            alike=alike,
            limit=LISTED,
            warnings=[
                *class_warnings(
                    manifest.classes, {split: np.array(manifest.splits[split].per_class) for split in SPLITS}
                ),
                *leak_warnings(same, alike),
            ],
            seen=_seen(manifest, store, [*same[:LISTED], *alike[:LISTED]]),
        )
    )
    return with_contents(page)


def proportions(shapes: Sizes, encoding: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The bars of a histogram of width to height, each with an image and what is kept of it, to be drawn."""
    bars: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for size, count in shapes.items():
        bars[round(STEPS * math.log2(size[1] / size[0]))][size] += count
    most = max(bar.total() for bar in bars.values()) if bars else 0
    for _, bar in sorted(bars.items()):
        (size, _), *others = bar.most_common()
        image, frame = np.array(size), np.array(target_of(encoding))
        image = image * ((frame / image).min() if "fit" in encoding else (frame / image).max())
        unit = BOX / max(*frame, *image)
        yield {
            "size": shown_size(size)
            + f" and {len(others):,} other size{'s'[: len(others) - 1]}" * bool(others),
            "count": bar.total(),
            "share": bar.total() / most,
            "frame": tuple((frame * unit).round(1).tolist()),
            "image": tuple((image * unit).round(1).tolist()),
        }


def how_split(manifest: DatasetManifest) -> str:
    """How the samples were assigned to the splits, in a sentence or two."""
    rule = manifest.split_rule
    given = [split for split in rule.get("given", ()) if split != "train"]  # which gives some to the others
    if len(given) == len(SPLITS) - 1:
        return "The source says which split each image is in."
    (missing,) = set(SPLITS) - {"train", *given} if given else ("",)
    start = (
        f"The source names the {given[0]} images, and no {missing} images: these come out of its images for "
        "training, split"
        if given
        else "Split"
    )
    if counts := rule.get("groups"):
        found = ", ".join(f"{counts[split]:,} in {split}" for split in SPLITS)
        how = f"by group, no group in two splits ({found})"
    else:
        how = "image by image"
    shares = (
        "; each class has its share to within one; images of earlier versions kept their split"
        if rule.get("kind") == "stratified"
        or rule.get("stratify") == "exact"  # as versions of before have it
        else ""
    )
    return f"{start} {how}, with seed {manifest.seed}{shares}."


Found = Mapping[str, Sequence[Members]]  # what is known about the images of each split


def copies(members: Found) -> list[dict[str, str]]:
    """Groups of ids, each with its split, that have the same file; those in several splits come first."""
    # The first 8 of the 32 bytes find the few that may be equal, in a tenth of the time and memory.
    starts = [part.sha256.view(np.uint64)[::4] for found in members.values() for part in found]
    every = np.concatenate([np.empty(0, np.uint64), *starts])
    order = np.argsort(every)
    same = every[order[1:]] == every[order[:-1]]
    suspects = np.union1d(order[1:][same], order[:-1][same])
    if not len(suspects):
        return []
    ids, splits, hashes = _gathered(members, "sha256")
    places: dict[bytes, list[int]] = defaultdict(list)
    for row in suspects.tolist():
        places[hashes[row]].append(row)
    return _named([np.array(rows) for rows in places.values() if len(rows) > 1], ids, splits)


def lookalikes(members: Found) -> list[dict[str, str]]:
    """Pairs of ids, each with its split, whose files look alike; those in two splits come first."""
    ids, splits, phashes = _gathered(members, "phashes")
    _, _, hashes = _gathered(members, "sha256")
    pairs = near_duplicates(phashes)
    return _named([np.array(pair) for pair in pairs if hashes[pair[0]] != hashes[pair[1]]], ids, splits)


def leak_warnings(same: Sequence[dict[str, str]], alike: Sequence[dict[str, str]]) -> Iterator[str]:
    """That files, or pictures, are in two splits: a test on them measures memory, not learning."""
    for kind, found in (("equal images", same), ("pairs of images that look alike", alike)):
        if leaks := [ids for ids in found if len(set(ids.values())) > 1]:
            first = {split: name for name, split in reversed(leaks[0].items())}  # one of each split
            example = ", ".join(f"{first[split]} ({split})" for split in SPLITS if split in first)
            yield f"{kind} are in more than one split: {len(leaks)}, such as {example}"


def _seen(
    manifest: DatasetManifest, store: Store, groups: Sequence[Mapping[str, str]]
) -> dict[tuple[str, str], str]:
    """Pictures of the first samples of each group, by split and id."""
    found = {}
    for split in SPLITS:
        wanted = [name for group in groups for name, where in list(group.items())[:PAIR] if where == split]
        if not wanted:
            continue
        index = open_index(manifest, split, store)
        part = _part(manifest, split, store, np.flatnonzero(np.isin(index.sample_ids.column, text(wanted))))
        rows = np.flatnonzero(np.isin(part.sample_ids.column, text(wanted)))
        for row, image in zip(rows.tolist(), part.images(rows), strict=True):
            found[split, part.sample_ids[row]] = _picture(image[None])
    return found


def _gathered(members: Found, column: str) -> tuple[Strings, list[str], Text]:
    """Ids, splits and a column of all members."""
    parts = [(split, part) for split, found in members.items() for part in found]
    if not parts:
        return Strings(text([])), [], text([])
    ids = Strings(np.concatenate([part.ids for _, part in parts]))
    values = np.concatenate([getattr(part, column) for _, part in parts])
    return ids, [split for split, part in parts for _ in range(len(part))], values


def _named(groups: Sequence[Rows], ids: Strings, splits: Sequence[str]) -> list[dict[str, str]]:
    named = [{ids[row]: splits[row] for row in group} for group in groups]
    return sorted(named, key=lambda group: (-len(set(group.values())), sorted(group)))


def _part(manifest: DatasetManifest, split: str, store: Store, rows: Rows) -> SplitReader:
    """A split with only those shards that hold these rows."""
    shards, index = manifest.splits[split].shards, open_index(manifest, split, store)
    ends = np.cumsum([shard.count for shard in shards])
    needed = np.unique(np.searchsorted(ends, rows, side="right"))
    inside = np.concatenate([np.arange(ends[place] - shards[place].count, ends[place]) for place in needed])
    part = SampleIndex(Strings(index.sample_ids.column[inside]), index.labels[inside])
    opened = open_shards([shards[place] for place in needed], manifest.shape, store)
    return SplitReader(manifest.shape, part, opened)


def _first(labels: NDArray[np.int64], label: int) -> NDArray[np.int64]:
    """Indices of the first samples that show this class."""
    shows = labels == label if labels.ndim == 1 else labels[:, label] == 1
    return np.flatnonzero(shows)[:PER_CLASS]


def _picture(images: Images) -> str:
    """Images side by side, as a PNG data URI."""
    height, width, channels = images.shape[1:]
    if min(height, width) < TILE:
        factor = -(-TILE // min(height, width))
        width, height, how = width * factor, height * factor, Image.Resampling.NEAREST
    else:
        width, height, how = round(width * TILE / height) * 2, TILE * 2, Image.Resampling.BOX
    sheet = Image.new("L" if channels == 1 else "RGB", ((width + GAP) * len(images), height), "white")
    for number, image in enumerate(images):
        tile = Image.fromarray(image[..., 0] if channels == 1 else image).resize((width, height), how)
        sheet.paste(tile, (number * (width + GAP), 0))
    return png_uri(sheet)
