"""Split samples that are given as plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ddpipe.data.manifest import SPLITS, Label
from ddpipe.prepare.splitting import UNKNOWN, split_samples
from ddpipe.sources.sample import Sample
from ddpipe.sources.samples import Samples

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def assign(
    units: Sequence[str],
    labels: Sequence[Label],
    fractions: Mapping[str, float] = FRACTIONS,
    seed: int = 0,
    given: Sequence[str] = (),
    earlier: Mapping[str, str] | None = None,
) -> list[str]:
    """The split of each sample.

    Args:
        units: The group of each sample.
        labels: Of each sample.
        fractions: Share of each split.
        seed: Of the rule.
        given: The split into which the source puts each sample, or "".
        earlier: The split of units in an earlier version.
    """
    classes = max((len(label) if isinstance(label, tuple) else label + 1 for label in labels), default=1)
    if len({len(label) if isinstance(label, tuple) else 0 for label in labels}) > 1:
        labels = [tuple(int(index in shown(label)) for index in range(classes)) for label in labels]
    samples = Samples.of(
        Sample(str(number), label, "", group=unit, split=split)
        for number, (unit, label, split) in enumerate(
            zip(units, labels, given or [""] * len(units), strict=True)
        )
    )
    before = None
    if earlier is not None:
        before = np.array(
            [SPLITS.index(earlier[unit]) if unit in earlier else UNKNOWN for unit in units], np.int8
        )
    return [SPLITS[place] for place in split_samples(samples, fractions, seed, classes, before)]


def shown(label: Label) -> set[int]:
    """The classes of a label."""
    return {label} if isinstance(label, int) else {index for index, value in enumerate(label) if value}
