"""What rejects raw data (unreadable images, tiny classes, torn groups), and what only deserves a warning."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from unicodedata import category, normalize

import numpy as np

from ddpipe.data.columns import Rows
from ddpipe.data.index import Labels, class_counts
from ddpipe.data.manifest import SPLITS
from ddpipe.errors import SourceError, listed
from ddpipe.prepare.spec import GROUPED, PrepareSpec
from ddpipe.prepare.splitting import Places, given_splits, numbered_units, open_splits, shown_by_units
from ddpipe.sources.base import error_for_source
from ddpipe.sources.samples import Samples
from ddpipe.storage import open_store

log = logging.getLogger(__name__)

FEW = {"train": 20, "validation": 10, "test": 10}  # fewer images of the smallest class deserve a warning
NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")  # a class that may be written as 1, 01 or 1.0
_Z = 1.96  # standard deviations to each side of a 95 % interval


def refuse_results_inside(spec: PrepareSpec, results: str) -> None:
    """What is written must not lie in the raw data, if all files there count as images or tars."""
    if spec.source not in GROUPED:
        return
    data, folder = open_store(spec.source_path).uri.rstrip("/"), open_store(results).uri
    if f"{folder}/".startswith(f"{data}/") and "/." not in folder.removeprefix(data):
        raise error_for_source(
            spec.where,
            f"results would be written into it, and read as raw data: {folder}",
            "Work in another folder, or name others with `store` and `runs`.",
        )


def refuse_small_classes(spec: PrepareSpec, classes: Sequence[str], samples: Samples) -> None:
    """There must be two classes, each with a unit for every split that the source does not fill."""
    if len(classes) < 2:  # noqa: PLR2004
        raise error_for_source(
            spec.where,
            f"it has only one class, {classes[0]!r}" if classes else "it has no class",
            "Give images of at least two classes.",
        )
    splits = open_splits(given_splits(samples))
    _, unit = numbered_units(samples)
    _, shown = shown_by_units(samples, unit, len(classes))
    counts = np.bincount(shown, minlength=len(classes)).tolist()
    noun = "group" if (samples.groups != b"").any() else "image"
    if small := [
        f"class {name!r} has {counts[label]} {noun}{'s' if counts[label] != 1 else ''}"
        for label, name in enumerate(classes)
        if counts[label] < len(splits)
    ]:
        raise error_for_source(
            spec.where,
            listed(small),
            f"Give every class at least {len(splits)} of them ({', '.join(splits)}), or remove the class.",
        )


def refuse_if_none_is_left(spec: PrepareSpec, rows: Rows, problems: Mapping[str, str]) -> None:
    """At least one image must be readable."""
    if not len(rows):
        raise error_for_source(
            spec.where,
            f"none of the images can be read; {_listed(problems)}",
            "Replace these files, or give the path of other data.",
        )


def _listed(problems: Mapping[str, str]) -> str:
    return listed([f"{name}: {reason}" for name, reason in sorted(problems.items())])


def refuse_unreadable(problems: Mapping[str, str], spec: PrepareSpec) -> None:
    """Samples that cannot be read are an error, unless the user wants to continue without them."""
    if problems and not spec.skip_bad:
        raise SourceError(
            what="some images cannot be read",
            which=spec.where,
            seen=_listed(problems),
            do="Replace or remove these files, or leave them out with `skip_bad`.",
        )


def refuse_torn_groups(spec: PrepareSpec, samples: Samples, places: Places) -> None:
    """The source itself must not put one group into several splits."""
    names, unit = numbered_units(samples)
    in_splits = np.zeros((len(names), len(SPLITS)), np.bool_)
    in_splits[unit, places] = True
    if torn := [
        f"group {names[number].decode()!r} is in "
        + ", ".join(sorted(split for split, there in zip(SPLITS, in_splits[number], strict=True) if there))
        for number in np.flatnonzero(in_splits.sum(axis=1) > 1)
    ]:
        raise error_for_source(
            spec.where, listed(torn), "Put each group into one split, or leave the split to ddpipe."
        )


def split_warnings(classes: Sequence[str], splits: Mapping[str, Samples]) -> Iterator[str]:
    """Warnings about what can be trained on, but may not be what its user wants."""
    yield from class_warnings(
        classes, {name: class_counts(part.labels, len(classes)) for name, part in splits.items()}
    )
    groups = np.concatenate([found.groups for found in splits.values()])
    groups = groups[groups != b""]
    if len(groups) > 1 and len(np.unique(groups)) == len(groups):
        example = groups[0].decode()
        yield f"every group has one image, such as {example!r}: does it really name groups?"


def class_warnings(classes: Sequence[str], counts: Mapping[str, Labels]) -> Iterator[str]:
    """Those that follow from the number of images of each class, by split."""
    yield from _few_images(classes, counts)
    spellings: dict[str, list[str]] = defaultdict(list)
    for name, count in zip(classes, np.sum([*counts.values()], axis=0).tolist(), strict=True):
        spellings[_spelling(name)].append(f"{name!r} ({count:,} images)")
    for alike in spellings.values():
        if len(alike) > 1:
            yield f"classes {', '.join(alike)} may be one, in several spellings"


def _spelling(name: str) -> str:
    """What is left of a name without case, spaces, widths and invisible characters; numbers by value."""
    plain = "".join(char for char in normalize("NFKC", name).casefold() if category(char) not in {"Cf", "Zs"})
    plain = "".join(plain.split())
    return f"{float(plain):g}" if NUMBER.fullmatch(plain) else plain


def _few_images(classes: Sequence[str], counts: Mapping[str, Labels]) -> Iterator[str]:
    """The smallest class decides what can be learned and measured."""
    is_few = np.any([found < FEW[split] for split, found in counts.items()], axis=0)
    if not is_few.any():
        return
    smallest = min(
        np.flatnonzero(is_few).tolist(), key=lambda label: sum(found[label] for found in counts.values())
    )
    shown = ", ".join(f"{found[smallest]:,} in {split}" for split, found in counts.items())
    others = int(is_few.sum()) - 1
    more = f", and {others} other class{'es' if others > 1 else ''} nearly as few" if others else ""
    width = interval_width(int(counts["test"][smallest]))
    yield (
        f"class {classes[smallest]!r} has few images ({shown}){more}: too few to learn it, or to measure its "
        f"recall (the 95 % interval is up to {width:.2f} wide)"
    )


def interval_width(count: int) -> float:
    """Width of the 95 % interval (Wilson, 1927) of a rate of a half, measured on `count` images."""
    return _Z / math.sqrt(count + _Z**2)


def note_missing_splits(samples: Samples) -> None:
    """Log where a split comes from that the source lacks, although it names others."""
    given = [split for split in given_splits(samples) if split]
    if given and (missing := [split for split in open_splits(given) if split != "train"]):
        log.info(
            "the source has no %s images of its own: they come out of its images for training",
            " and no ".join(missing),
        )
