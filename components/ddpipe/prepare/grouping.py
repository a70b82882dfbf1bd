"""Groups that the paths of images tell: patient12/scan3.png, or p12-left.png."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ddpipe.data.columns import Strings, text
from ddpipe.errors import SourceError, listed
from ddpipe.sources import Survey

LONGEST = 1024
"""Characters of a path that is searched. Python's expressions can backtrack for very long. The pattern is its
user's own affair; paths come with the data, and a plain pattern is quick on any that is not longer."""


def grouped(survey: Survey, pattern: str, where: str) -> Survey:
    """The survey with the group of each sample.

    Args:
        survey: What the source holds.
        pattern: Regular expression that is searched in each id; its first group counts, if it has one.
        where: The source, for messages.

    Raises:
        SourceError: It is not found in some ids.
    """
    search = re.compile(pattern).search
    ids = Strings(survey.samples.ids)
    groups = text(_found(search(name)) if len(name) <= LONGEST else "" for name in ids)
    if unmatched := [ids[row] for row in np.flatnonzero(groups == b"")]:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=where,
            seen=f"--group-pattern {pattern!r} finds nothing in some paths, {listed(unmatched)}",
            do="Correct the pattern: every image needs a group, if only its own name.",
        )
    return replace(survey, samples=replace(survey.samples, groups=groups))


def _found(match: re.Match[str] | None) -> str:
    """What was found, or its first group that took part."""
    if not match:
        return ""
    return next(filter(None, match.groups()), "") if match.re.groups else match[0]
