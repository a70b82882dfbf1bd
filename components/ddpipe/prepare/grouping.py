"""Groups named by the paths of images: patient12/scan3.png, or p12-left.png."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ddpipe.data.columns import Strings, text
from ddpipe.errors import SourceError, listed
from ddpipe.prepare.patterns import compiled
from ddpipe.sources import Survey


def grouped(survey: Survey, pattern: str, where: str) -> Survey:
    """The survey with the group of each sample."""
    search = compiled(pattern)
    ids = Strings(survey.samples.ids)
    groups = text(_found(search(name)) for name in ids)
    if unmatched := [ids[row] for row in np.flatnonzero(groups == b"")]:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=where,
            seen=f"`group_pattern` {pattern!r} matches nothing in some paths, {listed(unmatched)}",
            do="Correct the pattern: every image needs a group, even if that is its own name.",
        )
    return replace(survey, samples=replace(survey.samples, groups=groups))


def _found(match: Any) -> str:  # noqa: ANN401 - re2 has no types
    """The matched text, or the first group that took part."""
    if not match:
        return ""
    groups = match.groups()
    return next(filter(None, groups), "") if groups else str(match[0])
