"""What rejects raw data: results inside it, unreadable images, small classes, groups torn between splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ddpipe.data.columns import Rows
from ddpipe.data.manifest import SPLITS
from ddpipe.errors import SourceError, listed
from ddpipe.prepare.spec import GROUPED, PrepareSpec
from ddpipe.prepare.splitting import Places, given_splits, numbered_units, shown_by_units
from ddpipe.sources.sample_columns import Samples
from ddpipe.storage import open_store


def refuse_results_inside(spec: PrepareSpec, results: str) -> None:
    """What is written must not lie in the raw data, if all files there count as images or tars."""
    if spec.source not in GROUPED:
        return
    data, folder = open_store(spec.source_path).uri.rstrip("/"), open_store(results).uri
    if f"{folder}/".startswith(f"{data}/") and "/." not in folder.removeprefix(data):
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"results would be written into it, and read as raw data: {folder}",
            do="Work in another folder, or name others with `store` and `runs`.",
        )


def refuse_small_classes(spec: PrepareSpec, classes: Sequence[str], samples: Samples) -> None:
    """There must be two classes, each with a unit for every split or fold that the source does not fill."""
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


def refuse_if_none_is_left(spec: PrepareSpec, rows: Rows, problems: Mapping[str, str]) -> None:
    """At least one image must be readable."""
    if not len(rows):
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"none of the images can be read; {_listed(problems)}",
            do="Replace these files, or give the path of other data.",
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


def refuse_given_validation(spec: PrepareSpec, samples: Samples) -> None:
    """Folds need a validation split that the source leaves to us."""
    if spec.folds and "validation" in given_splits(samples):
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=f"folds is {spec.folds}, but the source itself says which images are for validation",
            do="Set folds to 0, or leave the split to ddpipe.",
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
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=spec.where,
            seen=listed(torn),
            do="Put each group into one split, or leave the split to ddpipe.",
        )
