"""Groups that the paths of images tell: patient12/scan3.png, or p12-left.png."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpipe.errors import SourceError, listed
from ddpipe.prepare.sources import Survey

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
    groups = {
        sample.id: _found(search(sample.id)) if len(sample.id) <= LONGEST else "" for sample in survey.samples
    }
    if unmatched := [name for name, group in groups.items() if not group]:
        raise SourceError(
            what="the raw data cannot become a dataset",
            which=where,
            seen=f"--group-pattern {pattern!r} finds nothing in some paths, {listed(unmatched)}",
            do="Correct the pattern: every image needs a group, if only its own name.",
        )
    return replace(
        survey, samples=tuple(replace(sample, group=groups[sample.id]) for sample in survey.samples)
    )


def _found(match: re.Match[str] | None) -> str:
    """What was found, or its first group that took part."""
    if not match:
        return ""
    return next(filter(None, match.groups()), "") if match.re.groups else match[0]
