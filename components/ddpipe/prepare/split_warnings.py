"""Warnings about a dataset version that can be trained on, but may not be what its user wants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ddpipe.sources.sample_columns import Samples

WIDEST = 0.2
"""Of a 95 % interval of an accuracy that is worth reporting."""

_Z = 1.96
"""Standard deviations to each side of a 95 % interval."""


def split_warnings(classes: Sequence[str], splits: Mapping[str, Samples]) -> Iterator[str]:
    """Warnings about the sizes of splits, the groups and the names of classes."""
    for name in ("validation", "test"):
        count = len(splits[name])
        if count > 0 and (width := interval_width(count)) > WIDEST:
            yield (
                f"the {name} split has {count} image{'s' if count > 1 else ''}, too few to measure "
                f"accuracy well (its 95 % interval is up to {width:.2f} wide)"
            )
    groups = np.concatenate([found.groups for found in splits.values()])
    groups = groups[groups != b""]
    if len(groups) > 1 and len(np.unique(groups)) == len(groups):
        example = groups[0].decode()
        yield f"every group has one image, such as {example!r}: does it really name groups?"
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        spellings["".join(name.split()).casefold()].append(name)
    for alike in spellings.values():
        if len(alike) > 1:
            yield f"classes {', '.join(map(repr, alike))} differ by case or spaces only"


def interval_width(count: int) -> float:
    """Width of the 95 % interval of an accuracy of a half, measured on `count` images.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    return _Z / math.sqrt(count + _Z**2)
